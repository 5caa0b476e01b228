//! Which of several listeners gets a connection.

use super::*;

pub const TESTS: &[Test] = &[
    ("inet: several that accept, and some that look", several),
    (
        "inet: a connection that waits for its first bytes",
        deferred,
    ),
    ("inet: what the protocols count", counts),
];

/// Each connection is accepted by one of several waiters, even if others poll for it.
fn several() -> Outcome {
    const CONNECTIONS: usize = 60;
    let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
    let at = listener.local_addr()?;
    let accepted = Arc::new(AtomicUsize::new(0));
    let accepting: Vec<_> = (0..4)
        .map(|_| {
            let (listener, accepted) = (listener.clone(), accepted.clone());
            thread::spawn(move || {
                while let Ok((mut stream, _)) = listener.accept() {
                    let mut byte = [0];
                    let _ = stream.read(&mut byte);
                    accepted.fetch_add(1, SeqCst);
                    let _ = stream.write(&byte);
                }
            })
        })
        .collect();
    // It polls and never accepts; it must not be the only one that is woken.
    let looking = {
        let (listener, accepted) = (listener.clone(), accepted.clone());
        thread::spawn(move || {
            while accepted.load(SeqCst) < CONNECTIONS {
                let mut entry = poll_entry(listener.as_raw_fd(), POLLIN);
                // SAFETY: the entry is alive.
                unsafe { libc::poll(&mut entry, 1, 20) };
            }
        })
    };
    for _ in 0..CONNECTIONS / 3 {
        let mut three = [
            TcpStream::connect(at)?,
            TcpStream::connect(at)?,
            TcpStream::connect(at)?,
        ];
        for (n, stream) in three.iter_mut().enumerate() {
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(&[n as u8])?;
        }
        for (n, stream) in three.iter_mut().enumerate() {
            let mut byte = [9];
            stream.read_exact(&mut byte)?;
            ensure!(byte == [n as u8], "{byte:?} came back");
        }
    }
    ensure!(looking.join().is_ok(), "the one that looks failed");
    call!(shutdown(listener.as_raw_fd(), SHUT_RD));
    for thread in accepting {
        ensure!(thread.join().is_ok(), "one that accepts failed");
    }
    Ok(())
}

/// `TCP_DEFER_ACCEPT`: accepted with the first bytes, with the end, or after the timeout.
fn deferred() -> Outcome {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    set_option(&listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, 1)?;
    listener.set_nonblocking(true)?;
    let at = listener.local_addr()?;
    let mut silent = TcpStream::connect(at)?;
    thread::sleep(Duration::from_millis(30));
    ensure!(listener.accept().is_err(), "accepted without bytes");
    ensure!(poll_for(&listener, POLLIN, 0)? == 0, "ready without bytes");
    silent.write_all(b"now")?;
    ensure!(
        poll_for(&listener, POLLIN, 0)? == POLLIN,
        "not ready with bytes"
    );
    let (mut server, _) = listener.accept()?;
    let mut buffer = [0; 8];
    let n = server.read(&mut buffer)?;
    ensure!(&buffer[..n] == b"now", "{:?}", &buffer[..n]);
    let ended = TcpStream::connect(at)?;
    drop(ended);
    let (mut server, _) = listener.accept()?;
    ensure!(server.read(&mut buffer)? == 0, "bytes before the end");
    let begun = Instant::now();
    let _patient = TcpStream::connect(at)?;
    listener.set_nonblocking(false)?;
    listener.accept()?;
    let waited = begun.elapsed();
    let expected = Duration::from_millis(800)..Duration::from_secs(8);
    ensure!(expected.contains(&waited), "accepted after {waited:?}");
    Ok(())
}

/// Returns a number of a line of `/proc/net/snmp` by its name.
fn counted(title: &str, name: &str) -> Result<u64> {
    let all = fs::read_to_string("/proc/net/snmp")?;
    let mut lines = all.lines().filter(|line| line.starts_with(title));
    let names = lines.next().ok_or("no names")?;
    let numbers = lines.next().ok_or("no numbers")?;
    let at = names.split(' ').position(|own| own == name);
    let number = numbers.split(' ').nth(at.ok_or("no such name")?);
    number
        .and_then(|number| number.parse().ok())
        .ok_or(format!("no number of {name}").into())
}

fn counts() -> Outcome {
    let active = counted("Tcp:", "ActiveOpens")?;
    let passive = counted("Tcp:", "PassiveOpens")?;
    let failed = counted("Tcp:", "AttemptFails")?;
    let (client, server) = pair()?;
    drop((client, server));
    let nobody = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.local_addr()?
    };
    ensure!(TcpStream::connect(nobody).is_err(), "connected to nobody");
    ensure!(counted("Tcp:", "ActiveOpens")? >= active + 2);
    ensure!(counted("Tcp:", "PassiveOpens")? > passive, "passive opens");
    ensure!(counted("Tcp:", "AttemptFails")? > failed, "failed attempts");
    let sent = counted("Udp:", "OutDatagrams")?;
    let received = counted("Udp:", "InDatagrams")?;
    let unheard = counted("Udp:", "NoPorts")?;
    let a = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    a.send_to(b"to myself", a.local_addr()?)?;
    a.send_to(b"to nobody", nobody)?;
    ensure!(counted("Udp:", "OutDatagrams")? >= sent + 2, "sent");
    ensure!(counted("Udp:", "InDatagrams")? > received, "received");
    ensure!(counted("Udp:", "NoPorts")? > unheard, "to nobody");
    Ok(())
}
