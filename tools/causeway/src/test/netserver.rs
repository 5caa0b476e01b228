//! UDP/IP outside the kernel: two guests over a card, whose `netserver` ends again and again while
//! data goes through it.

use anyhow::{Context, Result};

use super::Report;
use super::boot::Bench;
use super::network::{in_turn, options};
use crate::net::{Options, free_port};

/// Bytes in every test, and in a long one. Each server that ends loses the datagrams in flight; a
/// busy host carries 100 KiB a second.
const SHORT: u64 = 4 << 20;
const LONG: u64 = 1 << 30;

/// An MTU for packets of 16 KiB, as in the paper, with their header.
const MTU: u16 = 16 * 1024 + 20;

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report, is_long: bool) {
    for (cpus, mtu) in [(1, None), (2, Some(MTU))] {
        let packets = mtu.map_or("", |_| ", 16 KiB each");
        let name = format!("netserver: data between two guests, {cpus} CPUs{packets}");
        if report.wants(&name) {
            report.run(&name, || carry(bench, cpus, mtu, SHORT));
        }
    }
    let name = "netserver: 1 GiB between two guests";
    if is_long && report.wants(name) {
        report.run(name, || carry(bench, 1, Some(MTU), LONG));
    }
}

/// Carries so many bytes from one guest to another.
fn carry(bench: &Bench, cpus: u32, mtu: Option<u16>, bytes: u64) -> Result<()> {
    let socket = format!("socket=127.0.0.1:{}", free_port()?);
    // The address is the system's until the server has the card.
    let net = |own: &str| -> Result<Options> {
        Ok(Options {
            mtu,
            ..options(Some(&socket), &[], Some(own))?
        })
    };
    let seconds = 120 + bytes / (1 << 20);
    let guest = |words: String| {
        let line = format!("exec /tests/carry {words}");
        bench.shell(&line).cpus(cpus).timeout(seconds)
    };
    let receiver = guest(format!("receive 10.55.0.1/24 {bytes}")).net(&net("10.55.0.1/24")?)?;
    let sender = guest(format!("send 10.55.0.2/24 10.55.0.1 {bytes}"));
    // The guest whose options are made first listens for the other.
    let sender = || sender.net(&net("10.55.0.2/24")?)?.run_shown();
    let (receiver, sender) = in_turn(|each| receiver.run_with(each), sender)?;
    sender.ended(0).with_context(|| receiver.why())?;
    receiver.ended(0)
}
