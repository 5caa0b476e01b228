//! The x87 state as `fsave` lays it out, which stands in the signal frames of 32-bit programs
//! before the state that `fxsave` knows.

/// Bytes of it: seven words of environment, eight registers of ten bytes, and Linux's two half
/// words behind.
pub const LEN: usize = 112;

/// Where the registers stand in either layout, and how far apart.
const REGISTERS: usize = 28;
const FX_REGISTERS: usize = 32;
const REGISTER: usize = 10;
const FX_REGISTER: usize = 16;

/// Tags: valid, zero, special, empty.
const EMPTY: u16 = 3;

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the tag of a register by its contents.
fn tag(register: &[u8]) -> u16 {
    let significand_is_zero = register[..8].iter().all(|byte| *byte == 0);
    let normal = register[7] & 0x80 != 0;
    match half(register, 8) & 0x7fff {
        0 if significand_is_zero => 1,
        0 | 0x7fff => 2,
        _ if normal => 0,
        _ => 2,
    }
}

/// From the first 160 bytes of an `fxsave` area, and the program's code and data selectors.
pub fn from_fx(fx: &[u8], code: u16, data: u16) -> [u8; LEN] {
    let mut to = [0; LEN];
    let mut put = |at: usize, word: u32| to[at..at + 4].copy_from_slice(&word.to_le_bytes());
    const UPPER: u32 = 0xffff_0000;
    let (control, status) = (half(fx, 0), half(fx, 2));
    let top = usize::from(status >> 11 & 7);
    // Tags are by register, the area has them by distance from the top.
    let tags = (0..8).fold(0u16, |tags, n| {
        let at = FX_REGISTERS + (n + 8 - top) % 8 * FX_REGISTER;
        let tag = match fx[4] >> n & 1 {
            0 => EMPTY,
            _ => tag(&fx[at..at + REGISTER]),
        };
        tags | tag << (2 * n)
    });
    let word = |at: usize| u32::from(half(fx, at)) | u32::from(half(fx, at + 2)) << 16;
    put(0, UPPER | u32::from(control));
    put(4, UPPER | u32::from(status));
    put(8, UPPER | u32::from(tags));
    put(12, word(8));
    put(16, u32::from(code) | u32::from(half(fx, 6)) << 16);
    put(20, word(16));
    put(24, UPPER | u32::from(data));
    // Status once more, and a mark that says that the other state follows.
    put(108, u32::from(status));
    for n in 0..8 {
        let (at, from) = (REGISTERS + n * REGISTER, FX_REGISTERS + n * FX_REGISTER);
        to[at..at + REGISTER].copy_from_slice(&fx[from..from + REGISTER]);
    }
    to
}

/// Into the first 160 bytes of an `fxsave` area.
pub fn into_fx(from: &[u8; LEN], fx: &mut [u8]) {
    fx[..2].copy_from_slice(&from[..2]);
    fx[2..4].copy_from_slice(&from[4..6]);
    let tags = half(from, 8);
    fx[4] = (0..8).fold(0, |bits, n| {
        bits | u8::from(tags >> (2 * n) & 3 != EMPTY) << n
    });
    fx[5] = 0;
    fx[6..8].copy_from_slice(&from[18..20]);
    fx[8..12].copy_from_slice(&from[12..16]);
    fx[12..16].fill(0);
    fx[16..20].copy_from_slice(&from[20..24]);
    fx[20..24].fill(0);
    for n in 0..8 {
        let (at, to) = (REGISTERS + n * REGISTER, FX_REGISTERS + n * FX_REGISTER);
        fx[to..to + REGISTER].copy_from_slice(&from[at..at + REGISTER]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_converted_comes_back() {
        let mut fx = [0u8; 160];
        fx[..8].copy_from_slice(&[0x7f, 3, 0, 0x30, 0b1100_0001, 0, 0x11, 1]);
        fx[8..12].copy_from_slice(&[1, 2, 3, 4]);
        fx[16..20].copy_from_slice(&[5, 6, 7, 8]);
        // The top is register 6: 1.0 there, 0 in the next, a number without its leading bit in
        // register 0.
        fx[39..42].copy_from_slice(&[0x80, 0xff, 0x3f]);
        fx[32 + 32 + 8] = 1;
        let env = from_fx(&fx, 0x23, 0x2b);
        assert_eq!(half(&env, 8), 0b0100_1111_1111_1110);
        assert_eq!(half(&env, 4), 0x3000);
        let mut back = [0u8; 160];
        into_fx(&env, &mut back);
        assert_eq!(back, fx);
    }
}
