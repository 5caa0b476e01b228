//! An interface of the host's that one guest's card is tied to; only root can make one.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result, ensure};

/// The beginning of its name, which the number of the process and that of the interface follow.
const NAME: &str = "cw";

/// Bits of a network's prefix.
const BITS: u8 = 24;

/// The first network, 10.56.0.0; each interface of a process has one of its own.
const FIRST: [u8; 2] = [10, 56];

/// An interface with several queues, which is removed when this is dropped.
#[derive(Debug)]
pub struct Tap {
    name: String,
    number: u8,
}

/// Removes the interfaces of processes that were killed.
fn remove_left() -> Result<()> {
    for entry in fs::read_dir("/sys/class/net")? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        let numbers = name
            .strip_prefix(NAME)
            .and_then(|rest| rest.split_once('n'));
        let process = numbers.map(|(process, _)| process.parse::<u32>());
        if let Some(Ok(process)) = process
            && !Path::new(&format!("/proc/{process}")).exists()
        {
            drop(Tap {
                name: name.into(),
                number: 0,
            });
        }
    }
    Ok(())
}

/// Whether some interface of the host's is in this network.
fn is_taken(number: u8) -> bool {
    let listed = Command::new("ip").args(["-4", "-o", "address"]).output();
    let text = listed.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
    let [a, b] = FIRST;
    text.is_ok_and(|text| text.contains(&format!(" {a}.{b}.{number}.")))
}

impl Tap {
    /// Makes an interface with a network of its own, whose packets have at most `mtu` bytes.
    ///
    /// # Errors
    /// When this user or this host can't.
    pub fn new(mtu: u32) -> Result<Self> {
        /// Interfaces of this process so far.
        static COUNT: AtomicU8 = AtomicU8::new(0);
        File::open("/dev/net/tun").context("/dev/net/tun")?;
        remove_left()?;
        let process = std::process::id();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Another process may make one at the same time, and take the same network: the addresses
        // of processes that start together differ.
        let start = (process % 128) as u8;
        let number = (0..=u8::MAX)
            .map(|step| start.wrapping_add(count).wrapping_add(step))
            .find(|&number| !is_taken(number));
        let tap = Self {
            name: format!("{NAME}{process}n{count}"),
            number: number.context("each network of 10.56.0.0/16 is taken")?,
        };
        for words in [
            format!("tuntap add dev {} mode tap multi_queue", tap.name),
            format!("address add {}/{BITS} dev {}", tap.host(), tap.name),
            format!("link set {} mtu {mtu} up", tap.name),
        ] {
            let made = Command::new("ip").args(words.split(' ')).output();
            let made = made.context("ip")?;
            let why = String::from_utf8_lossy(&made.stderr);
            ensure!(made.status.success(), "ip {words}: {why}");
        }
        Ok(tap)
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the host's address on it.
    pub fn host(&self) -> Ipv4Addr {
        self.address(1)
    }

    /// Returns the guest's address on it.
    pub fn guest(&self) -> Ipv4Addr {
        self.address(2)
    }

    /// Returns the guest's address and the bits of the network's.
    pub fn guest_in_network(&self) -> String {
        format!("{}/{BITS}", self.guest())
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        let [a, b] = FIRST;
        Ipv4Addr::new(a, b, self.number, last)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let words = ["link", "delete", &self.name];
        // The interface may not have been made.
        let _ = Command::new("ip").args(words).output();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_of_a_killed_run_goes_with_the_next_one() {
        // No process has this number: it is above Linux's limit.
        let left = Tap {
            name: format!("{NAME}5000000n0"),
            number: 0,
        };
        let words = ["tuntap", "add", "dev", &left.name, "mode", "tap"];
        let made = Command::new("ip").args(words).status();
        if !made.is_ok_and(|status| status.success()) {
            // Only root can make one.
            return;
        }
        remove_left().unwrap();
        assert!(!Path::new("/sys/class/net").join(&left.name).exists());
    }
}
