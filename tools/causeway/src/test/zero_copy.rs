//! TCP without copies over a card: the guest tests of `network/zero_copy.rs` and `network/shown.rs`
//! against the same program on this host, and between two guests whose packets hold whole pages.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::Report;
use super::boot::{Bench, Plan};
use super::network::{in_turn, options};
use crate::net::{Options, free_port};
use crate::qemu::Iommu;

/// An MTU for four pages, and for the headers of IPv4 and of TCP with timestamps.
const PAGES: u16 = 4 * 4096 + 52;
/// The tests, each by some of its name.
const TESTS: &str = "'network: a large' 'network: bytes' 'network: writers' 'network: MSG' \
                     'network: a file that' 'network: pages' 'network: TCP_ZERO' \
                     'network: a mapping' 'network: splice'";

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("network: TCP without copies") {
        return;
    }
    for (cpus, iommu) in [(1, None), (2, None), (4, None), (2, Some(Iommu::On))] {
        let unit = if iommu.is_some() { ", IOMMU" } else { "" };
        let name = format!("network: pages that are passed, {cpus} CPUs{unit}");
        report.run(&name, || with_host(&bench.behind(iommu), cpus));
        let name = format!("network: pages between two guests, {cpus} CPUs{unit}");
        report.run(&name, || with_guest(&bench.behind(iommu), cpus));
    }
}

/// The other side on this host; it ends when this is dropped.
struct Server(Child);

impl Server {
    fn start(bench: &Bench) -> Result<(Server, u16)> {
        let port = free_port()?;
        let mut command = Command::new(bench.program("guest-tests"));
        let command = command.args(["--serve", &port.to_string()]);
        let mut server = Server(command.stdout(Stdio::piped()).spawn()?);
        let said = server.0.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        ensure!(line == "ready\n", "{line:?}");
        Ok((server, port))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the tests, whose other side is at an address.
fn guest<'a>(bench: &'a Bench, peer: &str, cpus: u32, net: &Options) -> Result<Plan<'a>> {
    let pages = net.mtu.map_or("", |_| "PAGES=1 ");
    // A connection to port 81 ends a server that is a guest.
    let line = format!(
        "export {pages}PEER={peer}; /tests/guest-tests {TESTS}; s=$?; \
         echo end | nc ${{PEER%:*}} 81; exit $s"
    );
    bench.shell(&line).cpus(cpus).timeout(240).net(net)
}

fn with_host(bench: &Bench, cpus: u32) -> Result<()> {
    let (_server, port) = Server::start(bench)?;
    let net = options(Some("user"), &[], None)?;
    let guest = guest(bench, &format!("10.0.2.2:{port}"), cpus, &net)?;
    guest.run_shown()?.ended(0)
}

fn with_guest(bench: &Bench, cpus: u32) -> Result<()> {
    let socket = format!("socket=127.0.0.1:{}", free_port()?);
    let net = |own: &str| -> Result<Options> {
        Ok(Options {
            mtu: Some(PAGES),
            ..options(Some(&socket), &[], Some(own))?
        })
    };
    let line = "/tests/guest-tests --serve 90 & nc -l -p 81 </dev/null >/dev/null; kill $!";
    let server = bench.shell(line).timeout(300);
    let server = server.net(&net("10.55.0.1/24")?)?;
    // The guest whose options are made first listens for the other.
    let client = || guest(bench, "10.55.0.1:90", cpus, &net("10.55.0.2/24")?)?.run_shown();
    let (server, client) = in_turn(|each| server.run_with(each), client)?;
    client.ended(0).with_context(|| server.why())
}
