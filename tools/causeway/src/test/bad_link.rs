//! Bad links: a cable that is pulled and replaced, a machine that ends with bytes under way, and
//! two guests with a link between them that loses, doubles, reorders and damages. Each guest checks
//! the bytes that the other has sent: two of this kernel's, and one of this kernel's with one of
//! Linux's, where there is a Linux.

use std::fmt;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use badlink::{Counts, Trouble};

use super::Report;
use super::boot::{Bench, Finished, finish, tell_monitor};
use super::network::{bytes, in_turn, options};
use crate::link::Link;
use crate::linux::{Linux, Mitigations};
use crate::project;
use crate::qemu::{Boot, Iommu, Machine};
use crate::root::Root;

/// The bytes that go each way, and those in the long form.
const BYTES: u64 = (4 << 20) + 4321;
const MANY: u64 = 1 << 30;
/// The seconds for a pair of guests, and in the long form.
const PATIENCE: u64 = 180;
const LONG_PATIENCE: u64 = 3600;

/// How bad the link is.
const BAD: Trouble = Trouble {
    lost: 50,
    doubled: 10,
    late: 50,
    lateness: 2_000_000,
    damaged: 10,
    delay: 0,
    cut: 0,
};

/// The first program of a guest with Linux.
const INIT: &str = "#!/bin/sh
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in /linux-modules/*; do insmod $module; done
ip link set lo up
ip address add ADDRESS dev eth0
ip link set eth0 up
LINE
poweroff -f
";

/// A kernel at one end, and its machine.
#[derive(Clone)]
enum Side {
    Causeway { cpus: u32, iommu: Option<Iommu> },
    Linux(Linux),
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Causeway { cpus, iommu } => {
                let unit = if iommu.is_some() { ", IOMMU" } else { "" };
                write!(f, "Causeway ({cpus} CPUs{unit})")
            }
            Self::Linux(_) => write!(f, "Linux"),
        }
    }
}

/// Runs them; in the long form each way has more bytes, and the rates are printed.
pub fn run(bench: &Bench, report: &mut Report, long: bool) {
    if !report.wants("network: a bad link") {
        return;
    }
    report.run("a cable is pulled and replaced", || cable(bench));
    let one = Side::Causeway {
        cpus: 1,
        iommu: None,
    };
    report.run("a machine ends with bytes under way", || {
        left(bench, one.clone())
    });
    let two = Side::Causeway {
        cpus: 2,
        iommu: None,
    };
    let guarded = Side::Causeway {
        cpus: 2,
        iommu: Some(Iommu::On),
    };
    let mut pairs = vec![[one.clone(), two]];
    let unpacked = project::home().is_ok_and(|home| home.join("target/linux/boot").exists());
    match unpacked.then(|| Linux::find(None)) {
        Some(Ok(linux)) => {
            let linux = Side::Linux(linux);
            pairs.push([one.clone(), linux.clone()]);
            pairs.push([linux.clone(), one.clone()]);
            // What the rates are held against.
            if long {
                pairs.push([linux.clone(), linux]);
            }
        }
        _ => println!("skip: a bad link to Linux: there is none here; `make bench` fetches one"),
    }
    pairs.push([guarded, one]);
    for pair in pairs {
        let name = format!("a bad link from {} to {}", pair[1], pair[0]);
        report.run(&name, || exchange(bench, &pair, long));
    }
}

/// The cable is pulled while bytes come, some are sent meanwhile, and all arrive when it is back.
fn cable(bench: &Bench) -> Result<()> {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = server.local_addr()?.port();
    let (tell, hear) = mpsc::channel();
    // The thread ends with this program, if no guest comes.
    thread::spawn(move || -> Result<()> {
        let (mut stream, _) = server.accept()?;
        let all = bytes();
        let (first, second) = all.split_at(all.len() / 2);
        stream.write_all(first)?;
        hear.recv()?;
        Ok(stream.write_all(second)?)
    });
    let monitor = bench.path("monitor");
    let option = format!("unix:{},server=on,wait=off", monitor.display());
    let set_link = move |state: &str| tell_monitor(&monitor, &format!("set_link net0 {state}"));
    let all = bytes();
    let len = all.len();
    let line = format!(
        "is_out() {{ ip link show eth0 | grep -q NO-CARRIER; }}; \
         nc 10.0.2.2 {port} >/tmp/a & until [ -s /tmp/a ]; do :; done; echo ready; \
         until is_out; do :; done; echo pulled; while is_out; do :; done; echo back; \
         wait; wc -c </tmp/a; dmesg | grep -c 'the link is gone'; cat /tmp/a"
    );
    let net = options(Some("user"), &[], None)?;
    let guest = bench.shell(&line).timeout(120).net(&net)?;
    let finished = guest.words(["-monitor", &option]).run_with(move |line| {
        // What fails here is seen by what the guest prints.
        let _ = match line {
            "ready" => set_link("off"),
            "pulled" => tell
                .send(())
                .map_err(Into::into)
                .and_then(|()| set_link("on")),
            _ => Ok(()),
        };
    })?;
    let said = format!("ready\npulled\nback\n{len}\n1\n");
    finished.is(0, &[said.as_bytes(), &all].concat())
}

/// Exchanges bytes between a server and a client.
fn exchange(bench: &Bench, sides: &[Side; 2], long: bool) -> Result<()> {
    let bytes = if long { MANY } else { BYTES };
    let lines = [
        format!("/tests/exchange listen 5000 {bytes} {bytes}"),
        format!("/tests/exchange 10.77.0.1:5000 {bytes} {bytes}"),
    ];
    let (finished, link) = over(BAD, bench, sides, &lines, long)?;
    let wanted = format!("{bytes} bytes out and {bytes} in are right");
    for side in &finished {
        let text = side.text();
        let is_right = text.lines().any(|line| line.trim_end() == wanted);
        ensure!(is_right, "{text}\n{link}{}", side.why());
    }
    let counts = link.counts();
    let is_bad = |it: &Counts| {
        [it.lost, it.damaged, it.doubled, it.late]
            .iter()
            .all(|&n| n > 0)
    };
    ensure!(counts.iter().all(is_bad), "{link}");
    if long {
        let rate = finished[1].text();
        let rate = rate.lines().find(|line| line.starts_with("rate"));
        println!("  {}\n{link}", rate.context("no rate")?);
    }
    Ok(())
}

/// A program sends bytes and ends, and its machine with it, while they are under way on a long
/// link: they arrive.
fn left(bench: &Bench, side: Side) -> Result<()> {
    let long = Trouble {
        delay: 50_000_000,
        ..badlink::GOOD
    };
    let lines = [
        "/tests/exchange listen 5000 0 200000",
        "/tests/exchange leave 10.77.0.1:5000 200000 0",
    ];
    let sides = [side.clone(), side];
    let (finished, link) = over(long, bench, &sides, &lines.map(Into::into), false)?;
    let [server, client] = finished;
    client.ended(0)?;
    let wanted = "0 bytes out and 200000 in are right";
    let text = server.text();
    ensure!(
        text.lines().any(|line| line == wanted),
        "{text}\n{link}{}",
        server.why()
    );
    Ok(())
}

/// Runs a server's line and a client's with a link between them; returns what came of it.
fn over(
    trouble: Trouble,
    bench: &Bench,
    sides: &[Side; 2],
    lines: &[String; 2],
    long: bool,
) -> Result<([Finished; 2], Link)> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let link = Link::start([any; 2], trouble, 1)?;
    let patience = if long { LONG_PATIENCE } else { PATIENCE };
    let boot = |at: usize, each: Box<dyn FnMut(&str) + Send>| -> Result<Finished> {
        let end = link.addresses()[at];
        let machine = machine(bench, &sides[at], at, end, &lines[at], long)?;
        let kernel = match &machine.boot {
            Boot::Kernel { kernel, .. } => kernel.clone(),
            Boot::Image(_) => PathBuf::new(),
        };
        finish(&machine, &kernel, &[], Duration::from_secs(patience), each)
    };
    let (server, client) = in_turn(|each| boot(0, each), || boot(1, Box::new(|_| ())))?;
    Ok(([server, client], link))
}

/// The machine of a side, which runs a line of the shell. The long form is for the fast kernel.
fn machine(
    bench: &Bench,
    side: &Side,
    at: usize,
    end: SocketAddr,
    line: &str,
    long: bool,
) -> Result<Machine> {
    let own = format!("10.77.0.{}/24", at + 1);
    let net = options(Some(&format!("socket={end}")), &[], Some(&own))?;
    let plan = bench.shell(line);
    match side {
        Side::Causeway { cpus, iommu } => {
            let bench = bench.behind(*iommu);
            let plan = bench.shell(line).cpus(*cpus).fast_if(long);
            plan.net(&net)?.machine()
        }
        Side::Linux(linux) => {
            let mut machine = plan.machine()?;
            machine.extra.extend(net.qemu(1)?);
            let mut root = Root::busybox()?;
            root.directory("tests", 0o755);
            root.host_file("tests/exchange", &bench.program("exchange"), 0o755)?;
            let init = INIT.replace("ADDRESS", &own).replace("LINE", line);
            root.file("init", 0o755, init);
            linux.add_modules(&mut root, &["virtio_pci", "virtio_net"])?;
            let archive = bench.path(&format!("linux-{at}.cpio"));
            root.write(&archive)?;
            let own = linux.command_line(Mitigations::Default, bench.accelerator);
            machine.boot = Boot::Kernel {
                kernel: linux.kernel.clone(),
                root: Some(archive),
                command_line: format!("{own} loglevel=1"),
            };
            Ok(machine)
        }
    }
}
