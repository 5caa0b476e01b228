//! Debian's programs for the network in one guest: it gets its address by dhclient, asks a mirror
//! on the host for packages, serves redis's and iperf3's clients, and the host logs in by ssh,
//! which tcpdump sees.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};

use super::boot::{Bench, shown};
use super::network::{bytes, options, when_ready};
use super::{Report, roots};
use crate::net::free_port;
use crate::root::Root;

/// What the mirror has.
const PACKAGE: &str = "Package: hello-mirror\nVersion: 1.2-3\nArchitecture: all\n\
                       Maintainer: nobody <nobody@example.org>\nFilename: pool/hello.deb\n\
                       Size: 1\nSHA256: 00\nDescription: nothing\n\n";

/// What the guest does. MIRROR is the mirror's port.
const LINE: &str = "
dhclient -1 -pf /run/dhclient.pid -lf /run/leases eth0 && echo $(ip -4 -br address show eth0)
echo 'deb [trusted=yes] http://10.0.2.2:MIRROR x main' >/etc/apt/sources.list
apt-get -q update >/run/apt 2>&1 || cat /run/apt
echo $(apt-cache policy hello-mirror | grep Candidate)
redis-server --daemonize yes --save '' >/dev/null
until [ \"$(redis-cli ping 2>/dev/null)\" = PONG ]; do :; done
redis-cli set key value | cat; redis-cli get key | cat
iperf3 -s -D && iperf3 -c 127.0.0.1 -n 4M >/run/iperf && tail -n 1 /run/iperf
tcpdump -n -i eth0 -c 1 'tcp dst port 22' >/run/dump 2>/run/dump.log &
until grep -q listening /run/dump.log; do :; done
mkdir -p /run/sshd; mkfifo /run/end; /usr/sbin/sshd && echo ready
read word </run/end; echo $word
wait $!; cut -d ' ' -f 2-7 /run/dump | tr -d '0-9'
";

/// What it prints.
const PRINTS: &str = "\
eth0 UP 10.0.2.15/24
Candidate: 1.2-3
OK
value
iperf Done.
ready
over
IP .... > ....: Flags [S],
";

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if report.wants("network: Debian's programs") {
        report.run("sshd, dhclient, apt-get, redis, iperf3 and tcpdump", || {
            programs(bench)
        });
    }
}

/// The folder with the programs, made if need be.
///
/// # Errors
/// When it can't be made.
pub fn folder() -> Result<PathBuf> {
    let packages = [
        "openssh-server",
        "isc-dhcp-client",
        "iproute2",
        "apt",
        "redis-server",
        "iperf3",
        "tcpdump",
    ];
    roots::folder("servers", &packages)
}

fn programs(bench: &Bench) -> Result<()> {
    let key = key(bench)?;
    let archive = bench.path("servers.cpio");
    let mut root = Root::folder(&folder()?)?;
    root.directory("root/.ssh", 0o700);
    let public = fs::read(key.with_extension("pub"))?;
    root.file("root/.ssh/authorized_keys", 0o600, public);
    root.write(&archive)?;
    let mirror = serve(HashMap::from([(
        "/dists/x/main/binary-amd64/Packages",
        PACKAGE,
    )]))?;
    let line = LINE.replace("MIRROR", &mirror.to_string());
    let port = free_port()?;
    let net = options(None, &[(port, 22)], None)?;
    let guest = bench.bash(&line).root(&archive).memory("1G").cpus(2);
    // Behind the host command's own word, which asks for an address.
    let guest = guest.timeout(300).net(&net)?.option("ip=none");
    let said = when_ready(&guest, move || log_in(&key, port))?;
    ensure!(said == PRINTS, "{said}");
    Ok(())
}

/// Makes a key for the host's ssh.
fn key(bench: &Bench) -> Result<PathBuf> {
    let file = bench.fresh_folder("key")?.join("key");
    let mut words = Command::new("ssh-keygen");
    words.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
    let made = words.arg(&file).output();
    let made = made.context("ssh-keygen: Debian's package openssh-client has it")?;
    ensure!(made.status.success(), "{}", shown(&made));
    Ok(file)
}

/// Sends bytes there and back, sees a terminal, and ends the guest.
fn log_in(key: &Path, port: u16) -> Result<()> {
    let all = bytes();
    let back = ssh(key, port, &["cat"], &all)?;
    ensure!(back == all, "{} bytes came back", back.len());
    let terminal = ssh(key, port, &["-tt", "tty"], &[])?;
    ensure!(terminal == b"/dev/pts/0\r\n", "{terminal:?}");
    ssh(key, port, &["echo over >/run/end"], &[]).map(drop)
}

/// Runs a command of the guest's with this input; returns its output.
fn ssh(key: &Path, port: u16, words: &[&str], input: &[u8]) -> Result<Vec<u8>> {
    let (options, command) = words.split_at(words.len() - 1);
    let mut ssh = Command::new("ssh");
    // Nothing of the user's own decides.
    ssh.args(["-F", "none", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]);
    ssh.args(["-o", "StrictHostKeyChecking=no"]);
    ssh.args(["-o", "UserKnownHostsFile=/dev/null"]);
    ssh.args(["-o", "IdentitiesOnly=yes", "-p", &port.to_string(), "-i"]);
    ssh.arg(key)
        .args(options)
        .arg("root@127.0.0.1")
        .args(command);
    let piped = ssh.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::piped()).spawn().context("ssh")?;
    let stdin = child.stdin.take();
    let output = thread::scope(|scope| {
        scope.spawn(move || stdin.map(|mut to| to.write_all(input)));
        child.wait_with_output()
    })?;
    ensure!(output.status.success(), "{words:?}: {}", shown(&output));
    Ok(output.stdout)
}

/// Serves these files by HTTP at a port of the host's, until this program ends.
fn serve(files: HashMap<&'static str, &'static str>) -> Result<u16> {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = server.local_addr()?.port();
    thread::spawn(move || {
        for stream in server.incoming().flatten() {
            // A client may end its connection early.
            let _ = answer(stream, &files);
        }
    });
    Ok(port)
}

fn answer(mut stream: TcpStream, files: &HashMap<&str, &str>) -> Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        request.push(byte[0]);
    }
    let request = String::from_utf8_lossy(&request);
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (status, body) = match files.get(path) {
        Some(body) => ("200 OK", *body),
        None => ("404 Not Found", ""),
    };
    let len = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes())?;
    Ok(())
}
