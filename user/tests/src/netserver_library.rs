//! The cases of `netserver`, by `/dev/fbuf`.

#[path = "../../netserver/tests/cases/mod.rs"]
mod cases;

use cases::ALL;
use libfbuf::Backend;
use support::prelude::*;

/// Makes a list of the cases of these numbers, which are all.
macro_rules! numbered {
    ($($number:literal)*) => {
        const COUNT: usize = [$($number),*].len();
        const _: () = assert!(COUNT == ALL.len());
        pub const TESTS: &[Test] = &[
            $((ALL[$number].0, || {
                ALL[$number].1(Backend::Device);
                Ok(())
            }),)*
        ];
    };
}

numbered! { 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 }
