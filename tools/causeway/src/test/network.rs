//! Guests on a network: servers that the host reaches, clients that reach the host, guests that
//! reach each other, and a card with several queues that cuts segments.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::boot::{Bench, Finished, Plan};
use super::{Report, roots};
use crate::net::{Options, free_port};
use crate::qemu::Iommu;
use crate::root::Root;
use crate::tap::Tap;

/// Bytes of what is fetched: many segments, and no whole number of pages.
const LEN: usize = (3 << 20) + 4321;
/// How long a connection of the host's may be silent.
const PATIENCE: Duration = Duration::from_secs(60);

/// A guest that serves its folder on port 80 until there is a connection to port 81.
const SERVES: &str =
    "httpd -p 80 -h /www && echo ready; nc -l -p 81 </dev/null >/dev/null; echo over";

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("network") {
        return;
    }
    let machines = [
        (1, None, ""),
        (2, None, ""),
        (4, None, ""),
        (1, Some(Iommu::On), ""),
        (2, Some(Iommu::On), ""),
        (4, Some(Iommu::On), "iommu=open"),
        (1, Some(Iommu::Caching), ""),
    ];
    for (cpus, iommu, options) in machines {
        let bench = &bench.behind(iommu);
        let unit = match iommu {
            None => "",
            Some(Iommu::Caching) => ", behind an IOMMU in caching mode",
            Some(_) => ", behind an IOMMU",
        };
        let machine = format!("{cpus} CPUs{unit} {options}");
        let machine = machine.trim_end();
        let guest = |line: &str| bench.shell(line).cpus(cpus).option(options);
        report.run(
            &format!("network: a server in the guest, {machine}"),
            || server(bench, guest),
        );
        report.run(&format!("network: clients in the guest, {machine}"), || {
            clients(guest)
        });
    }
    for iommu in [None, Some(Iommu::On)] {
        let unit = if iommu.is_some() { ", IOMMU" } else { "" };
        report.run(&format!("network: two guests{unit}"), || {
            joined(&bench.behind(iommu))
        });
    }
    report.run("network: the start without a card, or an address", || {
        none(bench)
    });
    for iommu in [None, Some(Iommu::On)] {
        let unit = if iommu.is_some() { ", IOMMU" } else { "" };
        report.run(&format!("network: Debian's nginx and curl{unit}"), || {
            debian(&bench.behind(iommu))
        });
    }
    // Only root can make an interface of the host's.
    match Tap::new(1500) {
        Err(why) => println!("  no interface of the host's can be made: {why:#}"),
        Ok(tap) => {
            for (cpus, iommu) in [(1, None), (4, None), (2, Some(Iommu::On))] {
                let unit = if iommu.is_some() { ", IOMMU" } else { "" };
                let name = format!("network: segments that the card cuts, {cpus} CPUs{unit}");
                report.run(&name, || cuts(&bench.behind(iommu), &tap, cpus));
            }
        }
    }
}

/// Bytes of which no piece is like another.
pub fn bytes() -> Vec<u8> {
    let words = (0..LEN as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 15) as u8);
    words.collect()
}

/// Options as a user gives them.
pub fn options(net: Option<&str>, ports: &[(u16, u16)], own: Option<&str>) -> Result<Options> {
    Ok(Options {
        net: net.map(str::parse).transpose()?,
        ports: ports
            .iter()
            .map(|(host, guest)| format!("{host}:{guest}").parse())
            .collect::<Result<_>>()?,
        own: own.map(str::parse).transpose()?,
        mtu: None,
    })
}

/// What a server of HTTP gives for a path.
fn fetch(at: (Ipv4Addr, u16), path: &str) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(at).with_context(|| format!("{at:?}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.with_context(|| format!("no header in {} bytes", answer.len()))?;
    ensure!(
        answer.starts_with(b"HTTP/1.") && answer[..end].windows(4).any(|it| it == b" 200"),
        "{}",
        String::from_utf8_lossy(&answer[..end])
    );
    Ok(answer.split_off(end + 4))
}

/// Runs a guest, and `act` when it has said that it is ready.
pub fn when_ready(
    guest: &Plan<'_>,
    act: impl Fn() -> Result<()> + Send + 'static,
) -> Result<String> {
    let (tell, hear) = mpsc::channel();
    let finished = guest.run_with(move |line| {
        if line == "ready" {
            // The other side waits for the guest's end in any case.
            let _ = tell.send(act());
        }
    })?;
    let acted = hear.try_recv();
    let acted = acted.map_err(|_| anyhow!("it never was ready; {}", finished.why()))?;
    acted.with_context(|| finished.why())?;
    finished.ended(0)?;
    Ok(finished.text())
}

fn server<'a>(bench: &'a Bench, guest: impl Fn(&str) -> Plan<'a>) -> Result<()> {
    let _ = bench;
    let line =
        format!("mkdir /www; seq 1 600000 >/www/numbers; {SERVES}; cat /etc/resolv.conf | head -2");
    let (web, end) = (free_port()?, free_port()?);
    let net = options(None, &[(web, 80), (end, 81)], None)?;
    let guest = guest(&line).timeout(180).net(&net)?;
    let said = when_ready(&guest, move || {
        let wanted: String = (1..=600_000).map(|n| format!("{n}\n")).collect();
        thread::scope(|scope| -> Result<()> {
            let all =
                [(); 4].map(|()| scope.spawn(|| fetch((Ipv4Addr::LOCALHOST, web), "/numbers")));
            for one in all {
                let found = one.join().map_err(|_| anyhow!("panicked"))??;
                ensure!(found == wanted.as_bytes(), "{} bytes came", found.len());
            }
            Ok(())
        })?;
        TcpStream::connect((Ipv4Addr::LOCALHOST, end))?;
        Ok(())
    })?;
    ensure!(
        said == "ready\nover\n#PROTO: DHCP\nnameserver 10.0.2.3\n",
        "{said}"
    );
    Ok(())
}

/// The folder with Debian's programs for the network, made if need be.
///
/// # Errors
/// When it can't be made.
pub fn folder() -> Result<PathBuf> {
    roots::folder("web", &["nginx-light", "curl"])
}

/// The host fetches a page of nginx's, and the guest one of the host's.
fn debian(bench: &Bench) -> Result<()> {
    let archive = bench.path("web.cpio");
    if !archive.exists() {
        Root::folder(&folder()?)?.write(&archive)?;
    }
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = server.local_addr()?.port();
    // The thread ends with this program, if no guest comes.
    thread::spawn(move || {
        let (mut stream, _) = server.accept()?;
        let mut request = [0; 4096];
        let _ = stream.read(&mut request)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
    });
    let line = format!(
        "seq 1 200000 >/var/www/html/numbers; nginx && curl -s http://10.0.2.2:{port}/ && echo ready; \
         while [ ! -e /run/end ]; do tail -n 1 /var/log/nginx/access.log | grep -q GET./end && \
         touch /run/end; done; nginx -s quit 2>/dev/null; cat /etc/resolv.conf"
    );
    let web = free_port()?;
    let net = options(None, &[(web, 80)], None)?;
    let guest = bench.bash(&line).root(&archive).memory("1G").cpus(2);
    let said = when_ready(&guest.timeout(300).net(&net)?, move || {
        let at = (Ipv4Addr::LOCALHOST, web);
        let wanted: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
        thread::scope(|scope| -> Result<()> {
            let all = [(); 4].map(|()| scope.spawn(|| fetch(at, "/numbers")));
            for one in all {
                let found = one.join().map_err(|_| anyhow!("panicked"))??;
                ensure!(found == wanted.as_bytes(), "{} bytes came", found.len());
            }
            Ok(())
        })?;
        // There is no such page; it ends the guest.
        let _ = fetch(at, "/end");
        Ok(())
    })?;
    ensure!(
        said == "hello\nready\n#PROTO: DHCP\nnameserver 10.0.2.3\nbootserver 10.0.2.2\n",
        "{said}"
    );
    Ok(())
}

/// Clients fetch what a server of the host's has, and send it back.
fn clients<'a>(guest: impl Fn(&str) -> Plan<'a>) -> Result<()> {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = server.local_addr()?.port();
    let (tell, hear) = mpsc::channel();
    // The thread ends with this program, if no guest comes.
    thread::spawn(move || {
        let serve = || -> Result<()> {
            let all = bytes();
            for turn in 0..4 {
                let (mut stream, _) = server.accept()?;
                stream.set_read_timeout(Some(PATIENCE))?;
                if turn < 3 {
                    let mut request = [0; 4096];
                    ensure!(stream.read(&mut request)? > 0, "no request");
                    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {LEN}\r\n\r\n")?;
                    stream.write_all(&all)?;
                    stream.shutdown(Shutdown::Write)?;
                    let _ = stream.read(&mut request);
                } else {
                    let mut found = Vec::new();
                    stream.read_to_end(&mut found)?;
                    ensure!(found == all, "{} bytes came back", found.len());
                }
            }
            Ok(())
        };
        let _ = tell.send(serve());
    });
    let url = format!("http://10.0.2.2:{port}/");
    let line = format!(
        "wget -qO /tmp/a {url} & wget -qO /tmp/b {url} & wget -qO /tmp/c {url} & wait; \
         cmp /tmp/a /tmp/b && cmp /tmp/a /tmp/c && nc 10.0.2.2 {port} </tmp/a; echo sent; \
         awk '/lo:/ {{ print $2, $10 }}' /proc/net/dev"
    );
    let net = options(Some("user"), &[], None)?;
    let finished = guest(&line).timeout(180).net(&net)?.run()?;
    finished.ended(0)?;
    // Nothing of it went over the loopback interface.
    finished.printed("sent\n0 0\n")?;
    let served = hear.recv_timeout(PATIENCE);
    served.map_err(|_| anyhow!("a client did not come"))?
}

/// A guest fetches from another one.
fn joined(bench: &Bench) -> Result<()> {
    let port = free_port()?;
    let group = format!("socket=230.9.8.7:{port}");
    let line = format!("mkdir /www; seq 1 300000 >/www/numbers; {SERVES}");
    let net = options(Some(&group), &[], Some("10.55.0.1/24"))?;
    let other = options(Some(&group), &[], Some("10.55.0.2/24"))?;
    let server = bench.shell(&line).timeout(180).net(&net)?;
    let fetch = "wget -qO- http://10.55.0.1/numbers | md5sum; echo end | nc 10.55.0.1 81";
    let client = bench.shell(fetch).timeout(120).net(&other)?;
    let (server, client) = in_turn(|each| server.run_with(each), || client.run())?;
    client.printed("daef482d6c698625ab13d987d14e8781  -\n")?;
    server.printed("ready\nover\n")
}

/// Runs a guest, which is given what is to be called with each of its lines, and another one when
/// it has said that it is ready.
///
/// # Errors
/// When QEMU cannot be started, or it never is ready.
pub fn in_turn(
    server: impl FnOnce(Box<dyn FnMut(&str) + Send>) -> Result<Finished> + Send,
    client: impl FnOnce() -> Result<Finished>,
) -> Result<(Finished, Finished)> {
    let (tell, hear) = mpsc::channel();
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            server(Box::new(move |line| {
                if line == "ready" {
                    let _ = tell.send(());
                }
            }))
        });
        // The server's end drops the sender: nothing is waited for longer than for that.
        let ready = hear.recv();
        let client = ready.is_ok().then(client).transpose();
        let server = server.join().map_err(|_| anyhow!("panicked"))??;
        match client? {
            Some(client) => Ok((server, client)),
            None => bail!("the server: {}", server.why()),
        }
    })
}

/// No card: no interface but the loopback one. A card and no address: the guest starts at once.
fn none(bench: &Bench) -> Result<()> {
    let line = "cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '; ls /etc/resolv.conf 2>/dev/null | wc -l";
    let finished = bench.shell(line).run()?;
    finished.printed("lo\n0\n")?;
    let net = options(Some("user"), &[], None)?;
    let card = bench.shell("dmesg | grep -c 'net: .*pairs of queues'");
    card.net(&net)?.option("ip=none").run()?.printed("1\n")
}

fn cuts(bench: &Bench, tap: &Tap, cpus: u32) -> Result<()> {
    let line = format!(
        "mkdir /www; seq 1 1000000 >/www/numbers; {SERVES}; \
         dmesg | grep -o '[0-9]* of [0-9]* pairs'; dmesg | grep -c 'SUMS.*CUTS_TCP_V4'"
    );
    let net = format!("tap={}", tap.name());
    let net = options(Some(&net), &[], Some(&tap.guest_in_network()))?;
    let guest = bench.shell(&line).cpus(cpus).timeout(180).net(&net)?;
    let own = tap.guest();
    let said = when_ready(&guest, move || {
        let at = |port| (own, port);
        let wanted: String = (1..=1_000_000).map(|n| format!("{n}\n")).collect();
        let found = fetch(at(80), "/numbers")?;
        ensure!(found == wanted.as_bytes(), "{} bytes came", found.len());
        TcpStream::connect(at(81))?;
        Ok(())
    })?;
    let queues = cpus.max(2);
    ensure!(
        said == format!("ready\nover\n{cpus} of {queues} pairs\n1\n"),
        "{said}"
    );
    Ok(())
}
