//! A guest that takes no messages, and a user that takes no bytes.

use super::*;

#[test]
fn a_flood_of_requests_does_not_fill_memory_or_block_the_streams() {
    let (mut bench, fake) = bench(1);
    let mut user = bench.first();
    fake.ready();
    let session = fake.start();
    let handle = bench.handle.clone();
    // A guest that takes no messages: those who send them wait.
    let flood = thread::spawn(move || {
        for rows in 0..400_000u32 {
            let rows = rows as u16;
            handle.window(FIRST, Window { rows, columns: 1 });
        }
    });
    thread::sleep(Duration::from_millis(100));
    // Those that must not wait do not.
    for _ in 0..1000 {
        bench.handle.signal_now(FIRST, 15);
    }
    fake.data(session).write_all(b"alive").unwrap();
    let mut five = [0; 5];
    user.output.read_exact(&mut five).unwrap();
    assert_eq!(&five, b"alive");
    bench.handle.stop();
    flood.join().unwrap();
    bench.join();
}

#[test]
fn stop_ends_a_switch_whose_output_nobody_takes() {
    let (mut bench, fake) = bench(1);
    let _user = bench.first();
    fake.ready();
    let session = fake.start();
    fake.data(session).set_nonblocking(true).unwrap();
    while fake.data(session).write(&[0; 4096]).is_ok() {}
    bench.handle.stop();
    bench.join();
}
