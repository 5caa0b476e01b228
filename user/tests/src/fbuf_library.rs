//! The cases of `libfbuf`, by `/dev/fbuf`; some by memfds, too.

#[path = "../../libfbuf/tests/cases/mod.rs"]
mod cases;

use cases::{ALL, Case, KERNEL};
use libfbuf::Backend;
use support::prelude::*;

/// The case of this number as a test.
const fn by_device<const N: usize>() -> Test {
    (case(N).0, || {
        case(N).1(Backend::Device);
        Ok(())
    })
}

const fn case(number: usize) -> Case {
    match number < ALL.len() {
        true => ALL[number],
        false => KERNEL[number - ALL.len()],
    }
}

/// Makes a list of the cases of these numbers, which are all.
macro_rules! numbered {
    ($($number:literal)*) => {
        const COUNT: usize = [$($number),*].len();
        const _: () = assert!(COUNT == ALL.len() + KERNEL.len());
        pub const TESTS: &[Test] = &[
            $(by_device::<$number>(),)*
            ("libfbuf: memfds", by_memfds),
            ("libfbuf: the examples", examples),
            ("libfbuf: the example for C", example_for_c),
        ];
    };
}

numbered! { 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 }

/// The cases by memfds, without those of hostile peers, which meet the library and not the kernel.
fn by_memfds() -> Outcome {
    let is_hostile = |case: &&Case| case.0.contains("hostile");
    for (name, case) in ALL.iter().filter(|case| !is_hostile(case)) {
        say(&format!("  {name}\n"));
        child(|| {
            case(Backend::Memfd);
            Ok(())
        })?;
    }
    Ok(())
}

fn examples() -> Outcome {
    for name in ["echo", "fan-out", "pipeline"] {
        let status = Command::new(format!("/tests/fbuf-{name}")).status()?;
        ensure!(status.success(), "{name}: {status}");
    }
    Ok(())
}

unsafe extern "C" {
    /// `user/libfbuf/examples/echo.c`.
    safe fn echo_example() -> c_int;
}

fn example_for_c() -> Outcome {
    equal!(echo_example(), 0);
    Ok(())
}
