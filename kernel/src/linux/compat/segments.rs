//! The segments that 32-bit programs set for their threads and processes.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{
    trap::{FIRST_TLS_SEGMENT, LOCAL_SEGMENTS, TLS_SEGMENTS},
    user,
};

use super::row::{Row, shim};
use crate::linux::syscall::Call;
use crate::process::segment::{Descriptor, place};

pub(super) const CALLS: &[Row] = &[
    shim(123, raw::__NR_modify_ldt, modify_local),
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

/// Bytes of a descriptor.
const DESCRIPTOR: usize = size_of::<u64>();
/// Bytes of the default table, which is empty.
const DEFAULT: usize = 128;

/// `modify_ldt`: reads the process's table, or sets a segment in it.
fn modify_local(call: &mut Call<'_>) -> Result<usize> {
    let len = call.unsigned(2) as usize;
    match call.unsigned(0) {
        0 => read_local(call, len),
        1 => write_local(call, len, true),
        2 => {
            let len = len.min(DEFAULT);
            user::clear(call.address(1), len)?;
            Ok(len)
        }
        0x11 => write_local(call, len, false),
        _ => Err(Errno::ENOSYS),
    }
}

fn read_local(call: &mut Call<'_>, len: usize) -> Result<usize> {
    let Some(local) = call.context.local_segments().filter(|it| !it.is_empty()) else {
        return Ok(0);
    };
    let len = len.min(LOCAL_SEGMENTS * DESCRIPTOR);
    let mut at = call.address(1);
    for n in 0..len.div_ceil(DESCRIPTOR) {
        let bytes = local.word(n).to_le_bytes();
        let left = len - n * DESCRIPTOR;
        user::copy_out(at, &bytes[..left.min(DESCRIPTOR)])?;
        at = at + DESCRIPTOR;
    }
    Ok(len)
}

fn write_local(call: &mut Call<'_>, len: usize, is_old: bool) -> Result<usize> {
    if len != size_of::<[u32; 4]>() {
        return Err(Errno::EINVAL);
    }
    let descriptor = Descriptor::decode_local(call.read(1)?, is_old)?;
    // A 64-bit program's threads have none.
    let local = call.context.local_segments().ok_or(Errno::ENOSYS)?;
    local.set(descriptor.number as usize, descriptor.segment)?;
    if !local.is_empty() {
        call.space().charge_segments(&call.process().account());
    }
    // The process's other threads have it when this returns.
    call.space().map().pmap().interrupt();
    Ok(0)
}
