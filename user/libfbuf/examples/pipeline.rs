//! Data goes from a source through a filter to a sink, three processes. The filter cuts lines out
//! and puts a header before them; the sink reads the bytes where the source wrote them.
//!
//! The source's path has two receivers: the filter has its descriptor by the channel, the sink
//! inherits it.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use libfbuf::{Channel, Contents, Domain, Member, Mode, Path};

const MESSAGES: usize = 1000;

/// Runs `body` in a child.
fn spawn(body: impl FnOnce() -> io::Result<()>) {
    // SAFETY: this program has one thread.
    if unsafe { libc::fork() } == 0 {
        let outcome = body();
        if let Err(why) = &outcome {
            eprintln!("pipeline: {why}");
        }
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
}

fn main() -> io::Result<()> {
    let domain = Domain::enter_any()?;
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0)?;
    let (to_filter, from_source) = UnixStream::pair()?;
    let (to_sink, from_filter) = UnixStream::pair()?;

    spawn(|| {
        let domain = Domain::enter_any()?;
        let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0)?;
        let from = from_source.try_clone()?;
        let mut source = Channel::connect(&domain, &path, from.into())?;
        let mut sink = Channel::connect(&domain, &path, to_sink.try_clone()?.into())?;
        loop {
            let message = match source.try_receive() {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                    // What the sink has freed is freed for the source, too.
                    Channel::wait_any(&mut [&mut source, &mut sink])?;
                    continue;
                }
                message => message?,
            };
            let Some(message) = message else {
                break;
            };
            // All but the first line, behind a header.
            let first = libfbuf::lines(&message, 100)
                .next()
                .map_or(0, |it| it.len());
            let body = path.forward(&message).clip_front(first as u64)?;
            sink.send(&body.prepend(b"filtered: ")?)?;
        }
        sink.finish()
    });
    spawn(|| {
        let domain = Domain::enter_any()?;
        // The inherited descriptor: what the filter forwards lies in this path.
        let fd = path.as_fd().try_clone_to_owned()?;
        let member = Member::attach(&domain, fd)?;
        let own = Path::new(&domain, Mode::CACHED_VOLATILE, 1)?;
        let from = from_filter.try_clone()?;
        let mut filter = Channel::connect(&domain, &own, from.into())?;
        let mut count = 0;
        // The filter may read that path, too, which by memfds no kernel knows.
        while let Some(message) = filter.receive_lent(|_| Some(member.clone()))? {
            let expected = format!("filtered: data {count}\n");
            assert_eq!(message.to_vec(100)?, expected.as_bytes());
            count += 1;
        }
        assert_eq!(count, MESSAGES);
        Ok(())
    });
    drop((from_source, to_sink, from_filter));

    let mut channel = Channel::connect(&domain, &path, to_filter.into())?;
    for number in 0..MESSAGES {
        channel.send(&path.copy(format!("secret\ndata {number}\n").as_bytes())?)?;
    }
    channel.finish()?;
    for _ in 0..2 {
        let mut status = 0;
        // SAFETY: the status lives across the call.
        unsafe { libc::wait(&raw mut status) };
        assert_eq!(status, 0);
    }
    println!("pipeline: {MESSAGES} messages");
    Ok(())
}
