//! The segments that threads of 32-bit programs set for themselves.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{
    trap::{FIRST_TLS_SEGMENT, TLS_SEGMENTS},
    user,
};

use super::row::{Row, shim};
use crate::linux::syscall::Call;
use crate::process::segment::{Descriptor, place};

pub(super) const CALLS: &[Row] = &[
    shim(243, raw::__NR_set_thread_area, set),
    shim(244, raw::__NR_get_thread_area, get),
];

/// `set_thread_area`: number -1 asks for a free one, and hears which.
fn set(call: &mut Call<'_>) -> Result<usize> {
    let words: [u32; 4] = call.read(0)?;
    let descriptor = Descriptor::decode(words)?;
    let n = match descriptor.number {
        -1 => {
            let free = (0..TLS_SEGMENTS).find(|n| call.context.segment(*n).is_none());
            let n = free.ok_or(Errno::ESRCH)?;
            user::write(call.address(0), &((FIRST_TLS_SEGMENT + n) as u32))?;
            n
        }
        number => place(number)?,
    };
    call.context.set_segment(n, descriptor.segment);
    Ok(0)
}

fn get(call: &mut Call<'_>) -> Result<usize> {
    let number: i32 = call.read(0)?;
    let segment = call.context.segment(place(number)?);
    let descriptor = Descriptor { number, segment };
    call.write(0, &descriptor.encode())?;
    Ok(0)
}
