//! The cases by memfds, on any Linux; with the word `device` by `/dev/fbuf`, and with others only
//! those cases that have one of them in their names.

mod cases;

use libfbuf::Backend;

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    words.retain(|word| !word.starts_with("--"));
    let device = words.iter().position(|word| word == "device");
    let backend = match device.map(|at| words.remove(at)) {
        Some(_) => Backend::Device,
        None => Backend::Memfd,
    };
    let mut passed = 0;
    for (name, case) in cases::ALL {
        if words.is_empty() || words.iter().any(|word| name.contains(word.as_str())) {
            cases::wait(cases::fork(|| case(backend)));
            println!("ok {name}");
            passed += 1;
        }
    }
    // A case that fails ends this program.
    println!("test result: ok. {passed} passed; 0 failed");
}
