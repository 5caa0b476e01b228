//! The kernel's command line: words of `name=value` up to ` -- `, then the command to run.

use alloc::{format, string::String, vec::Vec};

use nucleus::{PAGE_SIZE, switches::Setting};

use super::network::{self, Addressing};
use crate::{switches, uts};

/// The settings on the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Whether the console turns newlines into carriage return and newline (`onlcr=0|1`).
    pub onlcr: bool,
    /// Whether the console echoes input (`echo=0|1`).
    pub echo: bool,
    /// Mechanisms, with their settings: the defaults, and after them those of the command line.
    pub switches: Vec<(&'static str, Setting)>,
    /// The disk or the folder of the host's that is the root (`root=/dev/NAME [rootfstype=TYPE]`
    /// or `root=9p:TAG`, `[ro|rw] [fresh]`); none for the archive.
    pub root: Option<StoredRoot>,
    /// Folders of the host's to mount (`share=TAG:DIR[:ro]`, any number of times).
    pub shares: Vec<Share>,
    /// Sizes of memory disks, in bytes (`md=SIZE[,SIZE]`).
    pub memory_disks: Vec<u64>,
    /// Devices that pages go to when memory is short, by their names without `/dev/`
    /// (`swap=/dev/NAME`, any number of times).
    pub swaps: Vec<String>,
    /// The kernel release that programs see (`release=STRING`), if not its own.
    pub release: Option<Vec<u8>>,
    /// The host's name (`hostname=NAME`), if not its own.
    pub hostname: Option<Vec<u8>>,
    /// Where the first network card's addresses come from (`ip=dhcp|none|ADDRESS/BITS[,GATEWAY]`).
    pub addressing: Addressing,
    /// How many sessions the host may have at once (`sessions=N`): the command comes by the first
    /// one then. None for the serial console.
    pub sessions: Option<u8>,
    /// The program to run as the first process (`init=PATH`); none for the kernel's own.
    pub init: Option<Vec<u8>>,
    /// The command and its arguments; empty for a login shell.
    pub command: Vec<Vec<u8>>,
}

/// A root that is not unpacked into memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredRoot {
    pub source: RootSource,
    /// Its file system.
    pub fstype: String,
    /// Whether it is mounted so that nothing is changed.
    pub read_only: bool,
    /// Whether it is a copy that no earlier boot has changed.
    pub is_fresh: bool,
}

/// The place of a root's files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RootSource {
    /// The disk with this name, without `/dev/`.
    Disk(String),
    /// The folder of the host's that the device with this tag offers.
    Share(String),
}

/// The file system of a root on a disk where none is named.
const ROOT_TYPE: &str = "ext2";

/// A folder of the host's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// The tag of its device.
    pub tag: String,
    /// Where it is mounted.
    pub at: String,
    /// Whether nothing may be changed through the mount.
    pub read_only: bool,
}

/// Parses the command line.
///
/// # Errors
/// A sentence that describes the error.
pub fn parse(line: &str) -> Result<Options, String> {
    let mut options = Options {
        onlcr: true,
        echo: true,
        switches: switches::defaults(),
        root: None,
        shares: Vec::new(),
        memory_disks: Vec::new(),
        swaps: Vec::new(),
        release: None,
        hostname: None,
        addressing: Addressing::Later,
        sessions: None,
        init: None,
        command: Vec::new(),
    };
    let (own, command) = split(line);
    let (mut root_source, mut root_type, mut root_read_only) = (None, None, None);
    let mut root_is_fresh = false;
    for word in own.split_ascii_whitespace() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        match (name, value) {
            ("onlcr", _) => options.onlcr = need(word, value.and_then(bit), "onlcr is 0 or 1")?,
            ("echo", _) => options.echo = need(word, value.and_then(bit), "echo is 0 or 1")?,
            ("root", _) => {
                let help = "root wants a device, as in /dev/vda, or a share, as in 9p:root";
                root_source = Some(need(word, value.and_then(source_of_root), help)?);
            }
            ("rootfstype", _) => {
                let name = value.filter(|name| !name.is_empty());
                root_type = Some(need(
                    word,
                    name,
                    "rootfstype wants the name of a file system",
                )?);
            }
            ("ro", None) => root_read_only = Some(true),
            ("rw", None) => root_read_only = Some(false),
            ("fresh", None) => root_is_fresh = true,
            ("share", _) => {
                let help = "share wants a tag and an absolute path, as in data:/mnt:ro";
                options
                    .shares
                    .push(need(word, value.and_then(share), help)?);
            }
            ("md", _) => {
                let help = "md wants sizes of memory disks in K, M or G, whole pages, as in 16M,1G";
                options
                    .memory_disks
                    .extend(need(word, value.and_then(sizes), help)?);
            }
            ("swap", _) => {
                let help = "swap wants a device, as in /dev/vdb";
                let device = need(word, value.and_then(device_name), help)?;
                options.swaps.push(device.into());
            }
            ("release", _) => {
                let help =
                    format!("release wants 1 to {RELEASE_MAX} plain characters, a digit first");
                let text = need(word, value.filter(|text| is_release(text)), &help)?;
                options.release = Some(text.as_bytes().to_vec());
            }
            ("hostname", _) => {
                let help = format!("hostname wants 1 to {} plain characters", uts::NAME_MAX);
                let name = need(word, value.filter(|name| is_hostname(name)), &help)?;
                options.hostname = Some(name.as_bytes().to_vec());
            }
            ("ip", _) => {
                let help = "ip wants dhcp, none or an address, as in 10.0.0.2/24,10.0.0.1";
                options.addressing = need(word, value.and_then(network::parse), help)?;
            }
            ("sessions", _) => {
                let help = format!(
                    "sessions wants a number from 1 to {}",
                    session::MAX_SESSIONS
                );
                let number = value.and_then(|value| value.parse().ok());
                let number = number.filter(|number| (1..=session::MAX_SESSIONS).contains(number));
                options.sessions = Some(need(word, number, &help)?);
            }
            ("init", _) => {
                let path = value.filter(|path| path.starts_with('/'));
                let path = need(word, path, "init wants an absolute path")?;
                options.init = Some(path.as_bytes().to_vec());
            }
            // The nucleus has done these before; the other faults do not come here.
            (
                "fault_injection",
                Some(
                    "slow-calls" | "slow-faults" | "iommu-error" | "iommu-silence"
                    | "none:LimitTooWide",
                ),
            )
            | ("kaslr", Some("on" | "off")) => {}
            (name, value) if let Some(switch) = switches::find(name) => {
                let setting = value.and_then(|value| switch.parse(value));
                let setting = need(word, setting, &switch.help())?;
                options.switches.push((switch.name, setting));
            }
            _ => {
                return Err(format!(
                    "unknown option '{word}' on the kernel's command line"
                ));
            }
        }
    }
    options.root = match root_source {
        Some(RootSource::Share(_)) if root_type.is_some() => {
            return Err("rootfstype is for a root on a disk, and this one is a share".into());
        }
        Some(source) => Some(StoredRoot {
            fstype: match source {
                RootSource::Disk(_) => root_type.unwrap_or(ROOT_TYPE).into(),
                RootSource::Share(_) => "9p".into(),
            },
            source,
            read_only: root_read_only.unwrap_or(false),
            is_fresh: root_is_fresh,
        }),
        None if root_type.is_some() || root_read_only.is_some() || root_is_fresh => {
            return Err("rootfstype, ro, rw and fresh need a root: root is missing".into());
        }
        None => None,
    };
    if let Some(command) = command {
        options.command = words(command)?;
    }
    Ok(options)
}

/// Returns the value of the option `word`.
///
/// # Errors
/// A sentence with `help` if there is none.
fn need<T>(word: &str, value: Option<T>, help: &str) -> Result<T, String> {
    value.ok_or_else(|| format!("option '{word}': {help}"))
}

/// `0` or `1`.
fn bit(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// `/dev/NAME` or `9p:TAG`.
fn source_of_root(value: &str) -> Option<RootSource> {
    match value.strip_prefix("9p:") {
        Some("") => None,
        Some(tag) => Some(RootSource::Share(tag.into())),
        None => Some(RootSource::Disk(device_name(value)?.into())),
    }
}

/// `/dev/NAME`.
fn device_name(value: &str) -> Option<&str> {
    let name = value.strip_prefix("/dev/")?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

/// The longest release that `uname` has room for.
const RELEASE_MAX: usize = 64;

/// Whether a host may have this name.
fn is_hostname(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (1..=uts::NAME_MAX).contains(&name.len()) && name.chars().all(plain)
}

/// Whether programs that parse a release can do so with this one.
fn is_release(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+~".contains(c);
    (1..=RELEASE_MAX).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(plain)
}

/// `TAG:DIR`, `TAG:DIR:ro` or `TAG:DIR:rw`; in the path, `%` and two hexadecimal digits are a byte.
fn share(value: &str) -> Option<Share> {
    let (tag, rest) = value.split_once(':')?;
    let (at, read_only) = match rest.strip_suffix(":ro") {
        Some(at) => (at, true),
        None => (rest.strip_suffix(":rw").unwrap_or(rest), false),
    };
    if tag.is_empty() || !at.starts_with('/') {
        return None;
    }
    Some(Share {
        tag: tag.into(),
        at: unescape(at)?,
        read_only,
    })
}

/// `SIZE,SIZE`: each a number of KiB, MiB or GiB with its letter, whole pages, not 0. In bytes.
fn sizes(value: &str) -> Option<Vec<u64>> {
    let size = |text: &str| {
        let bytes = session::size::bytes(text)?;
        let fits =
            bytes > 0 && i64::try_from(bytes).is_ok() && bytes.is_multiple_of(PAGE_SIZE as u64);
        fits.then_some(bytes)
    };
    value.split(',').map(size).collect()
}

/// A path with each `%XX` replaced by the byte that it stands for.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push(match byte {
            b'%' => (digit()? << 4 | digit()?) as u8,
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// The kernel's part, and what follows the word `--`.
fn split(line: &str) -> (&str, Option<&str>) {
    let mut from = 0;
    while let Some(found) = line[from..].find("--") {
        let at = from + found;
        let before = line[..at]
            .chars()
            .next_back()
            .is_none_or(char::is_whitespace);
        let after = line[at + 2..]
            .chars()
            .next()
            .is_none_or(char::is_whitespace);
        if before && after {
            return (&line[..at], Some(&line[at + 2..]));
        }
        from = at + 2;
    }
    (line, None)
}

/// Splits as a shell does: `'...'`, `"..."` and `\` quote.
fn words(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = text.bytes();
    let unfinished = |what: &str| format!("the command after -- has {what}");
    while let Some(byte) = bytes.next() {
        match byte {
            b'\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next() {
                        Some(b'\'') => break,
                        Some(byte) => word.push(byte),
                        None => return Err(unfinished("an open '")),
                    }
                }
            }
            b'"' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next() {
                        Some(b'"') => break,
                        Some(b'\\') => match bytes.next() {
                            // GRUB puts a backslash before apostrophes too.
                            Some(byte @ (b'"' | b'\\' | b'$' | b'`' | b'\'')) => word.push(byte),
                            Some(byte) => word.extend([b'\\', byte]),
                            None => return Err(unfinished("an open \"")),
                        },
                        Some(byte) => word.push(byte),
                        None => return Err(unfinished("an open \"")),
                    }
                }
            }
            b'\\' => match bytes.next() {
                Some(byte) => word.get_or_insert_default().push(byte),
                None => return Err(unfinished("a \\ at its end")),
            },
            b' ' | b'\t' | b'\n' => words.extend(word.take()),
            byte => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Vec<String> {
        let options = parse(line).unwrap();
        let text = |word: &Vec<u8>| String::from_utf8(word.clone()).unwrap();
        options.command.iter().map(text).collect()
    }

    #[test]
    fn nothing_is_a_login_shell() {
        assert_eq!(
            parse(""),
            Ok(Options {
                onlcr: true,
                echo: true,
                switches: switches::defaults(),
                root: None,
                shares: Vec::new(),
                memory_disks: Vec::new(),
                swaps: Vec::new(),
                release: None,
                hostname: None,
                addressing: Addressing::Later,
                sessions: None,
                init: None,
                command: Vec::new()
            })
        );
    }

    #[test]
    fn sessions_and_the_name_of_the_host() {
        let options = parse("sessions=15 hostname=a-1.b").unwrap();
        assert_eq!(options.sessions, Some(15));
        assert_eq!(options.hostname, Some(b"a-1.b".to_vec()));
    }

    #[test]
    fn options_and_a_quoted_command() {
        let options = parse("onlcr=0 init=/sbin/init -- a").unwrap();
        assert!(!options.onlcr);
        assert_eq!(options.init, Some(b"/sbin/init".to_vec()));
        let options = parse("release=6.1.0-56-cloud-amd64").unwrap();
        assert_eq!(options.release, Some(b"6.1.0-56-cloud-amd64".to_vec()));
        let share = |line| parse(line).unwrap().shares[0].clone();
        let at = |tag: &str, at: &str, read_only| Share {
            tag: tag.into(),
            at: at.into(),
            read_only,
        };
        assert_eq!(share("share=a:/b"), at("a", "/b", false));
        assert_eq!(share("share=a:/b:c:ro"), at("a", "/b:c", true));
        assert_eq!(share("share=a:/b%20%c3%a9"), at("a", "/b é", false));
        let options = parse("md=16M,8k md=1G").unwrap();
        assert_eq!(options.memory_disks, [16 << 20, 8 << 10, 1 << 30]);
        let options = parse("swap=/dev/vdb swap=/dev/md0").unwrap();
        assert_eq!(options.swaps, ["vdb", "md0"]);
        assert_eq!(parse("ip=dhcp").unwrap().addressing, Addressing::Dhcp);
        let own = |address: &str, bits, gateway: Option<&str>| Addressing::Static {
            address: address.parse().unwrap(),
            bits,
            gateway: gateway.map(|text| text.parse().unwrap()),
        };
        let parsed = |line| parse(line).unwrap().addressing;
        assert_eq!(parsed("ip=10.0.0.2/8"), own("10.0.0.2", 8, None));
        let with_gateway = own("fd00::2", 64, Some("fd00::1"));
        assert_eq!(parsed("ip=fd00::2/64,fd00::1"), with_gateway);
        assert_eq!(
            command(r#"-- /bin/sh -c 'echo "a  b"' "it's \"so\" \n" x\ y '' --"#),
            [
                "/bin/sh",
                "-c",
                r#"echo "a  b""#,
                r#"it's "so" \n"#,
                "x y",
                "",
                "--"
            ]
        );
        assert_eq!(command("onlcr=1 --"), Vec::<String>::new());
    }

    /// Every value of every switch is read, the last one counts, and nothing else is a value.
    #[test]
    fn switches_are_read_by_their_table() {
        let setting = |line: &str, name| {
            let options = parse(line).unwrap();
            let mut all = options.switches.iter().rev();
            all.find(|(other, _)| *other == name).unwrap().1
        };
        for switch in switches::all() {
            let name = switch.name;
            for line in [String::new(), format!("{name}={}", switch.default)] {
                assert_eq!(Some(setting(&line, name)), switch.parse(switch.default));
            }
            for wrong in ["", "=", "=?"] {
                let line = format!("{name}{wrong}");
                assert!(parse(&line).unwrap_err().contains(&switch.help()));
            }
        }
        assert_eq!(setting("faultahead=7,8", "faultahead"), [7, 8]);
        assert_eq!(setting("large=off large=advised", "large"), [1, 0]);
    }

    #[test]
    fn a_disk_can_be_the_root() {
        let root = |line| parse(line).unwrap().root;
        let disk = |fstype: &str, read_only| StoredRoot {
            source: RootSource::Disk("vdb".into()),
            fstype: fstype.into(),
            read_only,
            is_fresh: false,
        };
        assert_eq!(root(""), None);
        assert_eq!(root("root=/dev/vdb"), Some(disk("ext2", false)));
        assert_eq!(
            root("ro root=/dev/vdb rootfstype=other"),
            Some(disk("other", true))
        );
        assert_eq!(root("root=/dev/vdb ro rw"), Some(disk("ext2", false)));
        assert!(root("root=/dev/vdb fresh").unwrap().is_fresh);
    }

    #[test]
    fn a_share_can_be_the_root() {
        let wanted = StoredRoot {
            source: RootSource::Share("top".into()),
            fstype: "9p".into(),
            read_only: true,
            is_fresh: false,
        };
        assert_eq!(parse("root=9p:top ro").unwrap().root, Some(wanted));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, part) in [
            ("onclr=1", "onclr=1"),
            ("onlcr=2", "onlcr=2"),
            ("echo=on", "echo=on"),
            ("faultahead=3", "faultahead=3"),
            ("faultahead=3,600", "faultahead=3,600"),
            ("idlelook=", "idlelook="),
            ("idlelook=10001", "idlelook=10001"),
            ("onlcr", "onlcr"),
            ("ephemeral=cached", "direct, window or uncached"),
            ("ephemeral", "direct, window or uncached"),
            ("shootdown=all", "precise or broadcast"),
            ("ptcache=0", "on, off or dynamic"),
            ("fork=lazy", "share or copy"),
            ("large=2M", "off, advised or on"),
            ("swapcluster=0", "1 to 512"),
            ("swapcluster=513", "1 to 512"),
            ("swapcluster", "1 to 512"),
            ("share", "share"),
            ("share=tag", "share=tag"),
            ("share=tag:/x%2", "share=tag:/x%2"),
            ("share=tag:/x%ff", "share=tag:/x%ff"),
            ("share=:/mnt", "share=:/mnt"),
            ("share=tag:mnt", "absolute"),
            ("md", "sizes"),
            ("md=", "md="),
            ("md=16", "K, M or G"),
            ("md=0M", "md=0M"),
            ("md=6K", "whole pages"),
            ("md=1M,", "md=1M,"),
            ("md=+1M", "md=+1M"),
            ("md=99999999999G", "md=9"),
            ("md=é", "md=é"),
            ("init=sh", "absolute"),
            ("root=vda", "root=vda"),
            ("root=/dev/", "/dev/vda"),
            ("root=/dev/a/b", "/dev/vda"),
            ("root", "/dev/vda"),
            ("root=/dev/vda rootfstype=", "rootfstype="),
            ("rootfstype=ext2", "root is missing"),
            ("ro", "root is missing"),
            ("fresh", "root is missing"),
            ("root=9p:", "9p:root"),
            ("root=9p:top rootfstype=ext2", "a share"),
            ("root=/dev/vda ro=1", "ro=1"),
            ("swap=vdb", "/dev/vdb"),
            ("swap", "/dev/vdb"),
            ("hostname=", "hostname"),
            ("hostname=a/b", "plain"),
            ("ip=", "ip wants dhcp"),
            ("ip=10.0.0.1", "ip wants dhcp"),
            ("ip=10.0.0.1/33", "ip wants dhcp"),
            ("ip=10.0.0.1/8,::1", "ip wants dhcp"),
            ("sessions=0", "1 to 15"),
            ("sessions=16", "1 to 15"),
            ("release", "digit"),
            ("release=x1", "release=x1"),
            ("release=6.1/2", "plain"),
            ("--x", "--x"),
            ("-- 'a", "open '"),
            ("-- \"a", "open \""),
            ("-- a\\", "\\"),
        ] {
            let message = parse(line).unwrap_err();
            assert!(message.contains(part), "{line}: {message}");
            assert!(!message.contains('\n'));
        }
    }

    /// Whatever the bytes, an answer and no panic.
    #[test]
    fn random_lines_never_panic() {
        let alphabet: Vec<char> = "-- '\"\\=ainotlcr01/é\t".chars().collect();
        let mut seed = 1u64;
        for _ in 0..50_000 {
            let mut line = String::new();
            for _ in 0..seed % 24 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                line.push(alphabet[(seed >> 33) as usize % alphabet.len()]);
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1) >> 1;
            let _ = parse(&line);
        }
    }
}
