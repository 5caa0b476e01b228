//! Interfaces, addresses and routes that programs change, and packets beyond this machine: the
//! other machine is this program, at the far end of a `tap`.
//!
//! - `links`: interfaces; `routes`: routes and neighbours; `requests`: netlink itself;
//! - `machines`: packets of another machine; `packets`: packet sockets;
//! - `zero_copy`: pages that are lent to a connection; `shown`: pages that come from one.

use support::prelude::*;

pub mod frames;
pub mod links;
pub mod machines;
pub mod packets;
pub mod requests;
pub mod routes;
pub mod shown;
pub mod zero_copy;

const SIOCSIFADDR: u64 = 0x8916;
const SIOCSIFNETMASK: u64 = 0x891c;
const SIOCSIFFLAGS: u64 = 0x8914;
const SIOCGIFFLAGS: u64 = 0x8913;
const SIOCGIFINDEX: u64 = 0x8933;
const TUNSETIFF: u64 = 0x4004_54ca;
const TUNSETPERSIST: u64 = 0x4004_54cb;
const MAC: [u8; 6] = [2, 9, 9, 9, 9, 9];
const OWN: [u8; 4] = [10, 9, 0, 1];
const FAR: [u8; 4] = [10, 9, 0, 2];

/// A tap whose interface is up, and a thread at its far end.
struct Tap {
    file: Arc<File>,
    name: String,
    index: u32,
}

fn request(name: &str, value: &[u8]) -> [u8; 40] {
    let mut request = [0; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..16 + value.len()].copy_from_slice(value);
    request
}

fn socket_of(family: c_int, kind: c_int, protocol: c_int) -> Result<OwnedFd> {
    let fd = call!(socket(family, kind | SOCK_CLOEXEC, protocol));
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address(ip: [u8; 4], port: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0] = AF_INET as u8;
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&ip);
    bytes
}

impl Tap {
    /// Makes a tap that is down.
    fn make() -> Result<Tap> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun")?;
        let mut asked = request("", &((IFF_TAP | IFF_NO_PI) as u16).to_le_bytes());
        call!(ioctl(file.as_raw_fd(), TUNSETIFF as _, asked.as_mut_ptr()));
        let name = asked[..16].split(|byte| *byte == 0).next().unwrap_or(&[]);
        let name = String::from_utf8_lossy(name).into_owned();
        let socket = socket_of(AF_INET, SOCK_DGRAM, 0)?;
        let mut asked = request(&name, &[]);
        call!(ioctl(
            socket.as_raw_fd(),
            SIOCGIFINDEX as _,
            asked.as_mut_ptr()
        ));
        let index = u32::from_le_bytes([asked[16], asked[17], asked[18], asked[19]]);
        Ok(Tap {
            file: Arc::new(file),
            name,
            index,
        })
    }

    fn set_up(&self, up: bool) -> Outcome {
        let socket = socket_of(AF_INET, SOCK_DGRAM, 0)?;
        let mut asked = request(&self.name, &[u8::from(up), 0x10]);
        call!(ioctl(
            socket.as_raw_fd(),
            SIOCSIFFLAGS as _,
            asked.as_mut_ptr()
        ));
        Ok(())
    }

    /// As `make`, up, with 10.9.0.1/24.
    fn ready() -> Result<Tap> {
        let tap = Tap::make()?;
        tap.set_up(true)?;
        let socket = socket_of(AF_INET, SOCK_DGRAM, 0)?;
        for (command, value) in [
            (SIOCSIFADDR, address(OWN, 0)),
            (SIOCSIFNETMASK, address([255, 255, 255, 0], 0)),
        ] {
            let mut asked = request(&tap.name, &value);
            call!(ioctl(socket.as_raw_fd(), command as _, asked.as_mut_ptr()));
        }
        Ok(tap)
    }

    /// Starts the other machine: it answers questions for its address, and passes on the other
    /// frames.
    fn far(&self) -> mpsc::Receiver<Vec<u8>> {
        let (file, (frames, received)) = (self.file.clone(), mpsc::channel());
        thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok(n) = (&*file).read(&mut buffer) {
                let frame = &buffer[..n];
                let asks = n >= 42 && frame[12..14] == [8, 6] && frame[21] == 1;
                if asks && frame[38..42] == FAR {
                    let mut answer = frame[6..12].to_vec();
                    answer.extend(MAC);
                    answer.extend(&frame[12..20]);
                    answer.extend([0, 2]);
                    answer.extend(MAC);
                    answer.extend(FAR);
                    answer.extend(&frame[22..32]);
                    let _ = (&*file).write(&answer);
                } else if frames.send(frame.to_vec()).is_err() {
                    return;
                }
            }
        });
        received
    }

    fn send(&self, frame: &[u8]) -> Outcome {
        let n = (&*self.file).write(frame)?;
        equal!(n, frame.len());
        Ok(())
    }
}

fn sum(bytes: &[u8]) -> [u8; 2] {
    let mut total = 0u64;
    for pair in bytes.chunks(2) {
        total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while total > 0xffff {
        total = (total >> 16) + (total & 0xffff);
    }
    (!(total as u16)).to_be_bytes()
}

/// A frame of IPv4 to this machine.
fn frame(to_mac: &[u8], from: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = to_mac.to_vec();
    bytes.extend(MAC);
    bytes.extend([8, 0, 0x45, 0]);
    bytes.extend((20 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
    bytes.extend(from);
    bytes.extend(OWN);
    let header = sum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&header);
    bytes.extend(payload);
    bytes
}

/// Waits for a frame that fits.
fn await_frame(frames: &mpsc::Receiver<Vec<u8>>, fits: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
    let mut others = 0;
    loop {
        let Ok(frame) = frames.recv_timeout(Duration::from_secs(20)) else {
            return Err(Failure::from(format!("no such frame among {others}")));
        };
        if fits(&frame) {
            return Ok(frame);
        }
        others += 1;
    }
}

/// A netlink socket of a protocol, in groups.
fn netlink(protocol: c_int, groups: u32) -> Result<OwnedFd> {
    let socket = socket_of(AF_NETLINK, SOCK_RAW, protocol)?;
    // SAFETY: all zeros is a valid address.
    let mut name: sockaddr_nl = unsafe { zeroed() };
    name.nl_family = AF_NETLINK as u16;
    name.nl_groups = groups;
    let len = size_of::<sockaddr_nl>() as u32;
    call!(bind(socket.as_raw_fd(), (&raw const name).cast(), len));
    let time = time_val(20_000_000);
    set_option(&socket, SOL_SOCKET, SO_RCVTIMEO, time)?;
    Ok(socket)
}

/// A request: type, flags, the structure behind the head, attributes.
fn message(kind: u16, flags: c_int, body: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes[4..6].copy_from_slice(&kind.to_le_bytes());
    bytes[6..8].copy_from_slice(&(flags as u16 | 1).to_le_bytes());
    bytes[8] = 7;
    bytes.extend(body);
    for (kind, value) in attributes {
        bytes.extend((4 + value.len() as u16).to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(*value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// Receives a datagram, and splits it: types and messages.
fn receive(socket: &OwnedFd) -> Result<Vec<(u16, Vec<u8>)>> {
    let mut buffer = vec![0u8; 65_536];
    let n = call!(recv(
        socket.as_raw_fd(),
        buffer.as_mut_ptr().cast(),
        buffer.len(),
        0
    ));
    let (mut left, mut all) = (&buffer[..n as usize], Vec::new());
    while left.len() >= 16 {
        let len = u32::from_le_bytes([left[0], left[1], left[2], left[3]]) as usize;
        ensure!((16..=left.len()).contains(&len), "{len} of {}", left.len());
        all.push((u16::from_le_bytes([left[4], left[5]]), left[..len].to_vec()));
        left = &left[len.next_multiple_of(4).min(left.len())..];
    }
    Ok(all)
}

/// Sends a request with an acknowledgement; returns its number.
fn ask(socket: &OwnedFd, request: &[u8]) -> Result<i32> {
    let n = call!(send(
        socket.as_raw_fd(),
        request.as_ptr().cast(),
        request.len(),
        0
    ));
    equal!(n as usize, request.len());
    loop {
        for (kind, bytes) in receive(socket)? {
            if kind == NLMSG_ERROR as u16 {
                return Ok(i32::from_le_bytes([
                    bytes[16], bytes[17], bytes[18], bytes[19],
                ]));
            }
        }
    }
}

/// Lists: all messages until the end.
fn list(socket: &OwnedFd, request: &[u8]) -> Result<Vec<(u16, Vec<u8>)>> {
    let n = call!(send(
        socket.as_raw_fd(),
        request.as_ptr().cast(),
        request.len(),
        0
    ));
    equal!(n as usize, request.len());
    let mut all = Vec::new();
    loop {
        for (kind, bytes) in receive(socket)? {
            match kind {
                3 => return Ok(all),
                2 => return Err(Failure::from(format!("an error: {bytes:?}"))),
                _ => all.push((kind, bytes)),
            }
        }
    }
}

/// The attribute of a message behind a structure of `head` bytes.
fn attribute(bytes: &[u8], head: usize, wanted: u16) -> Option<&[u8]> {
    let mut left = bytes.get(16 + head..)?;
    while left.len() >= 4 {
        let len = usize::from(u16::from_le_bytes([left[0], left[1]]));
        let kind = u16::from_le_bytes([left[2], left[3]]) & 0x3fff;
        if len < 4 || len > left.len() {
            return None;
        }
        if kind == wanted {
            return Some(&left[4..len]);
        }
        left = &left[len.next_multiple_of(4).min(left.len())..];
    }
    None
}

/// A `struct ifaddrmsg`, a `struct rtmsg`, a `struct ndmsg`.
fn ifaddr(bits: u8, index: u32) -> Vec<u8> {
    let mut body = vec![AF_INET as u8, bits, 0, 0];
    body.extend(index.to_le_bytes());
    body
}

fn rt(bits: u8) -> Vec<u8> {
    vec![AF_INET as u8, bits, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]
}

fn nd(index: u32, state: u16) -> Vec<u8> {
    let mut body = vec![AF_INET as u8, 0, 0, 0];
    body.extend(index.to_le_bytes());
    body.extend(state.to_le_bytes());
    body.extend([0, 0]);
    body
}

const ACK: c_int = NLM_F_ACK;
const CREATE: c_int = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
