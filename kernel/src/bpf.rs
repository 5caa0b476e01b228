//! Classic BPF programs: forward jumps only. Those of seccomp see the data of a call and nothing
//! else; those of sockets see a packet, and what is known of it.

use alloc::vec::Vec;

use abi::{
    Errno, Result,
    raw::ptrace::{
        BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_DIV, BPF_H, BPF_IMM, BPF_IND, BPF_JA,
        BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_LD, BPF_LDX, BPF_LEN, BPF_LSH,
        BPF_MAXINSNS, BPF_MEM, BPF_MEMWORDS, BPF_MISC, BPF_MOD, BPF_MSH, BPF_MUL, BPF_NEG, BPF_OR,
        BPF_RET, BPF_RSH, BPF_ST, BPF_STX, BPF_SUB, BPF_TAX, BPF_TXA, BPF_X, BPF_XOR,
    },
};

/// The words of `struct seccomp_data`: number, architecture, instruction pointer, six arguments.
pub const DATA_WORDS: usize = 16;

/// The bytes of `struct seccomp_data`.
const DATA_LEN: u32 = (DATA_WORDS * size_of::<u32>()) as u32;

/// What an arithmetic instruction does with the accumulator and its operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    Remainder,
}

/// For whom a program is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// A check of system calls.
    Seccomp,
    /// A filter of a socket.
    Socket,
}

/// Begins of the places that a filter's load may name besides the packet: what is known of it, the
/// header of the network, the header of the link.
const KNOWN: u32 = 0x1000u32.wrapping_neg();
const NETWORK: u32 = 0x10_0000u32.wrapping_neg();
const LINK: u32 = 0x20_0000u32.wrapping_neg();
/// How far such places reach.
const KNOWN_LEN: u32 = 64;
const PARTS_LEN: u32 = 0x10_0000;

/// A packet, as a filter sees it.
pub trait Packet {
    /// Returns the number of bytes.
    fn len(&self) -> u32;

    /// Copies bytes from byte `at` on; false if there are not so many.
    fn peek(&self, at: u32, to: &mut [u8]) -> bool;

    /// As [`peek`](Packet::peek), counted from the header of the link.
    fn peek_link(&self, at: u32, to: &mut [u8]) -> bool;

    /// As [`peek`](Packet::peek), counted from the header of the network.
    fn peek_network(&self, at: u32, to: &mut [u8]) -> bool;

    /// Returns what is known besides the bytes (`SKF_AD_*`); `None` for what is not.
    fn known(&self, what: u32) -> Option<u32>;
}

/// A packet with its first bytes at hand.
struct View<'a>(&'a dyn Packet);

impl View<'_> {
    /// Returns the number of `size` bytes at `at`, in network order; `None` beyond the end.
    fn load(&self, at: u32, size: u8) -> Option<u32> {
        let mut bytes = [0; 4];
        let to = &mut bytes[4 - usize::from(size)..];
        let found = if at >= KNOWN && at - KNOWN < KNOWN_LEN {
            return self.0.known(at - KNOWN);
        } else if (NETWORK..KNOWN).contains(&at) {
            self.0.peek_network(at - NETWORK, to)
        } else if at >= LINK && at - LINK < PARTS_LEN {
            self.0.peek_link(at - LINK, to)
        } else {
            self.0.peek(at, to)
        };
        found.then(|| u32::from_be_bytes(bytes))
    }
}

/// What a jump compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Test {
    Equal,
    Above,
    AtLeast,
    AnyBit,
}

/// Where an operand or a result is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operand {
    Constant,
    Index,
}

/// An instruction whose operands were checked. `A` is the accumulator, `X` the index register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Instruction {
    /// A becomes a word of the data of a call.
    LoadData(u32),
    /// A becomes a number of so many bytes of the packet, at a place or that far behind X.
    LoadPacket(u8, Operand, u32),
    /// X becomes four times the low half of a byte of the packet: the length of a header of IPv4.
    LoadHeaderX(u32),
    /// A or X becomes the length of the packet.
    LoadLengthA,
    LoadLengthX,
    LoadA(u32),
    LoadX(u32),
    LoadMemoryA(u8),
    LoadMemoryX(u8),
    StoreA(u8),
    StoreX(u8),
    Compute(Arithmetic, Operand, u32),
    Negate,
    /// Skips so many instructions.
    Skip(u32),
    /// Skips as many as the outcome says: true, false.
    SkipIf(Test, Operand, u32, [u8; 2]),
    CopyAToX,
    CopyXToA,
    Return(u32),
    ReturnA,
}

/// A program that was checked: it ends, and reads no memory that it has not written.
#[derive(Debug)]
pub struct Program(Vec<Instruction>);

impl Program {
    /// Checks the `count` instructions that `fetch` delivers in turn, each as the 8 bytes of
    /// `struct sock_filter`.
    ///
    /// # Errors
    /// `EINVAL` for what Linux refuses, `ENOMEM`, those of `fetch`.
    pub fn new(
        whose: Use,
        count: usize,
        mut fetch: impl FnMut(usize) -> Result<u64>,
    ) -> Result<Program> {
        if !(1..=BPF_MAXINSNS as usize).contains(&count) {
            return Err(Errno::EINVAL);
        }
        let mut instructions = Vec::new();
        instructions.try_reserve_exact(count)?;
        for at in 0..count {
            let after = (count - at - 1) as u32;
            instructions.push(decode(whose, fetch(at)?, after).ok_or(Errno::EINVAL)?);
        }
        let ends = matches!(
            instructions.last(),
            Some(Instruction::Return(_) | Instruction::ReturnA)
        );
        if !ends || !reads_what_it_wrote(&instructions)? {
            return Err(Errno::EINVAL);
        }
        Ok(Program(instructions))
    }

    /// The number of its instructions.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<Instruction>()
    }

    /// Runs it on the words of `struct seccomp_data`. It takes at most [`len`](Self::len) steps.
    pub fn run(&self, data: &[u32; DATA_WORDS]) -> u32 {
        self.run_on(|instruction, _| match instruction {
            Instruction::LoadData(word) => data.get(word as usize).copied(),
            _ => None,
        })
    }

    /// Runs it on a packet; returns how many bytes of that are wanted. A load beyond the end ends
    /// it with 0.
    pub fn run_on_packet(&self, packet: &dyn Packet) -> u32 {
        let view = View(packet);
        self.run_on(|instruction, x| match instruction {
            Instruction::LoadPacket(size, Operand::Constant, at) => view.load(at, size),
            // Only places in the packet itself are counted from X.
            Instruction::LoadPacket(size, Operand::Index, at) => {
                view.load(x.wrapping_add(at), size)
            }
            Instruction::LoadHeaderX(at) => view.load(at, 1),
            Instruction::LoadLengthA | Instruction::LoadLengthX => Some(packet.len()),
            _ => None,
        })
    }

    /// Runs it; `load` gives what an instruction loads, given X.
    #[inline(always)]
    fn run_on(&self, mut load: impl FnMut(Instruction, u32) -> Option<u32>) -> u32 {
        let (mut a, mut x) = (0u32, 0u32);
        let mut memory = [0; BPF_MEMWORDS as usize];
        let mut at = 0;
        loop {
            let instruction = self.0[at];
            at += 1;
            match instruction {
                Instruction::LoadData(_)
                | Instruction::LoadPacket(..)
                | Instruction::LoadLengthA => match load(instruction, x) {
                    Some(value) => a = value,
                    None => return 0,
                },
                Instruction::LoadHeaderX(_) => match load(instruction, x) {
                    Some(value) => x = (value & 15) * 4,
                    None => return 0,
                },
                Instruction::LoadLengthX => x = load(instruction, x).unwrap_or(0),
                Instruction::LoadA(value) => a = value,
                Instruction::LoadX(value) => x = value,
                Instruction::LoadMemoryA(word) => a = memory[usize::from(word)],
                Instruction::LoadMemoryX(word) => x = memory[usize::from(word)],
                Instruction::StoreA(word) => memory[usize::from(word)] = a,
                Instruction::StoreX(word) => memory[usize::from(word)] = x,
                Instruction::Compute(what, operand, constant) => {
                    let by = operand.value(constant, x);
                    a = match what {
                        Arithmetic::Add => a.wrapping_add(by),
                        Arithmetic::Subtract => a.wrapping_sub(by),
                        Arithmetic::Multiply => a.wrapping_mul(by),
                        Arithmetic::Remainder => match a.checked_rem(by) {
                            Some(rest) => rest,
                            None => return 0,
                        },
                        Arithmetic::Divide => match a.checked_div(by) {
                            Some(quotient) => quotient,
                            // As on Linux the program ends with 0.
                            None => return 0,
                        },
                        Arithmetic::And => a & by,
                        Arithmetic::Or => a | by,
                        Arithmetic::Xor => a ^ by,
                        Arithmetic::ShiftLeft => a.wrapping_shl(by),
                        Arithmetic::ShiftRight => a.wrapping_shr(by),
                    };
                }
                Instruction::Negate => a = a.wrapping_neg(),
                Instruction::Skip(count) => at += count as usize,
                Instruction::SkipIf(test, operand, constant, [yes, no]) => {
                    let with = operand.value(constant, x);
                    let holds = match test {
                        Test::Equal => a == with,
                        Test::Above => a > with,
                        Test::AtLeast => a >= with,
                        Test::AnyBit => a & with != 0,
                    };
                    at += usize::from(if holds { yes } else { no });
                }
                Instruction::CopyAToX => x = a,
                Instruction::CopyXToA => a = x,
                Instruction::Return(value) => return value,
                Instruction::ReturnA => return a,
            }
        }
    }
}

impl Operand {
    fn value(self, constant: u32, index: u32) -> u32 {
        match self {
            Operand::Constant => constant,
            Operand::Index => index,
        }
    }
}

/// Decodes an instruction that only filters of sockets have.
fn decode_of_socket(code: u32, k: u32) -> Option<Instruction> {
    let load = |size, operand| Some(Instruction::LoadPacket(size, operand, k));
    match code {
        _ if code == BPF_LD | BPF_ABS => load(4, Operand::Constant),
        _ if code == BPF_LD | BPF_H | BPF_ABS => load(2, Operand::Constant),
        _ if code == BPF_LD | BPF_B | BPF_ABS => load(1, Operand::Constant),
        _ if code == BPF_LD | BPF_IND => load(4, Operand::Index),
        _ if code == BPF_LD | BPF_H | BPF_IND => load(2, Operand::Index),
        _ if code == BPF_LD | BPF_B | BPF_IND => load(1, Operand::Index),
        _ if code == BPF_LDX | BPF_B | BPF_MSH => Some(Instruction::LoadHeaderX(k)),
        _ if code == BPF_LD | BPF_LEN => Some(Instruction::LoadLengthA),
        _ if code == BPF_LDX | BPF_LEN => Some(Instruction::LoadLengthX),
        _ => None,
    }
}

/// Decodes an instruction that `after` others follow; `None` for one that its use does not have.
fn decode(whose: Use, word: u64, after: u32) -> Option<Instruction> {
    let code = word as u32 & 0xffff;
    let [yes, no] = [(word >> 16) as u8, (word >> 24) as u8];
    let k = (word >> 32) as u32;
    let memory = || u8::try_from(k).ok().filter(|_| k < BPF_MEMWORDS);
    let operand = match code & BPF_X {
        0 => Operand::Constant,
        _ => Operand::Index,
    };
    if whose == Use::Socket
        && let Some(load) = decode_of_socket(code, k)
    {
        return Some(load);
    }
    Some(match code {
        _ if code == BPF_LD | BPF_ABS => {
            let fits = k < DATA_LEN && k.is_multiple_of(4);
            fits.then_some(Instruction::LoadData(k / 4))?
        }
        _ if code == BPF_LD | BPF_IMM => Instruction::LoadA(k),
        _ if code == BPF_LDX | BPF_IMM => Instruction::LoadX(k),
        _ if code == BPF_LD | BPF_LEN => Instruction::LoadA(DATA_LEN),
        _ if code == BPF_LDX | BPF_LEN => Instruction::LoadX(DATA_LEN),
        _ if code == BPF_LD | BPF_MEM => Instruction::LoadMemoryA(memory()?),
        _ if code == BPF_LDX | BPF_MEM => Instruction::LoadMemoryX(memory()?),
        BPF_ST => Instruction::StoreA(memory()?),
        BPF_STX => Instruction::StoreX(memory()?),
        _ if code == BPF_MISC | BPF_TAX => Instruction::CopyAToX,
        _ if code == BPF_MISC | BPF_TXA => Instruction::CopyXToA,
        BPF_RET => Instruction::Return(k),
        _ if code == BPF_RET | BPF_A => Instruction::ReturnA,
        _ if code == BPF_ALU | BPF_NEG => Instruction::Negate,
        _ if code == BPF_JMP | BPF_JA => (k < after).then_some(Instruction::Skip(k))?,
        _ if code & 7 == BPF_ALU => {
            let what = match code & !(7 | BPF_X) {
                BPF_ADD => Arithmetic::Add,
                BPF_SUB => Arithmetic::Subtract,
                BPF_MUL => Arithmetic::Multiply,
                BPF_DIV => Arithmetic::Divide,
                BPF_MOD if whose == Use::Socket => Arithmetic::Remainder,
                BPF_AND => Arithmetic::And,
                BPF_OR => Arithmetic::Or,
                BPF_XOR => Arithmetic::Xor,
                BPF_LSH => Arithmetic::ShiftLeft,
                BPF_RSH => Arithmetic::ShiftRight,
                _ => return None,
            };
            let is_shift = matches!(what, Arithmetic::ShiftLeft | Arithmetic::ShiftRight);
            let divides = matches!(what, Arithmetic::Divide | Arithmetic::Remainder);
            let undefined = is_shift && k >= u32::BITS || divides && k == 0;
            if operand == Operand::Constant && undefined {
                return None;
            }
            Instruction::Compute(what, operand, k)
        }
        _ if code & 7 == BPF_JMP => {
            let test = match code & !(7 | BPF_X) {
                BPF_JEQ => Test::Equal,
                BPF_JGT => Test::Above,
                BPF_JGE => Test::AtLeast,
                BPF_JSET => Test::AnyBit,
                _ => return None,
            };
            let inside = u32::from(yes) < after && u32::from(no) < after;
            inside.then_some(Instruction::SkipIf(test, operand, k, [yes, no]))?
        }
        _ => return None,
    })
}

/// Whether each word of memory that is read was written before on every way there.
fn reads_what_it_wrote(instructions: &[Instruction]) -> Result<bool> {
    // The words written on all ways that lead to an instruction from those before it.
    let mut written = Vec::new();
    written.try_reserve_exact(instructions.len())?;
    written.resize(instructions.len(), u16::MAX);
    let mut here = 0u16;
    for (at, instruction) in instructions.iter().enumerate() {
        here &= written[at];
        let mut reach = |skipped: usize| written[at + 1 + skipped] &= here;
        match *instruction {
            Instruction::StoreA(word) | Instruction::StoreX(word) => here |= 1 << word,
            Instruction::LoadMemoryA(word) | Instruction::LoadMemoryX(word)
                if here & 1 << word == 0 =>
            {
                return Ok(false);
            }
            Instruction::Skip(count) => {
                reach(count as usize);
                here = u16::MAX;
            }
            Instruction::SkipIf(.., skips) => {
                skips.into_iter().for_each(|skip| reach(usize::from(skip)));
                here = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nucleus::sim::Random;

    fn op(code: u32, k: u32, skips: [u8; 2]) -> u64 {
        u64::from(code) | u64::from(skips[0]) << 16 | u64::from(skips[1]) << 24 | u64::from(k) << 32
    }

    fn program(words: &[u64]) -> Result<Program> {
        Program::new(Use::Seccomp, words.len(), |at| Ok(words[at]))
    }

    fn data(random: &mut Random) -> [u32; DATA_WORDS] {
        core::array::from_fn(|_| random.below(5) as u32)
    }

    /// What the machine of classic BPF does with encoded instructions.
    fn model(words: &[u64], data: &[u32; DATA_WORDS]) -> u32 {
        let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; 16], 0);
        loop {
            let word = words[at];
            let (code, k) = (word as u16, (word >> 32) as u32);
            let operand = if code & 8 == 0 { k } else { x };
            at += 1;
            match code {
                0x20 => a = data[k as usize / 4],
                0x80 => a = 64,
                0x81 => x = 64,
                0x00 => a = k,
                0x01 => x = k,
                0x60 => a = memory[k as usize],
                0x61 => x = memory[k as usize],
                0x02 => memory[k as usize] = a,
                0x03 => memory[k as usize] = x,
                0x07 => x = a,
                0x87 => a = x,
                0x06 => return k,
                0x16 => return a,
                0x84 => a = 0u32.wrapping_sub(a),
                0x05 => at += k as usize,
                _ if code & 7 == 4 => {
                    a = match code & 0xf0 {
                        0x00 => a.wrapping_add(operand),
                        0x10 => a.wrapping_sub(operand),
                        0x20 => a.wrapping_mul(operand),
                        0x30 if operand == 0 => return 0,
                        0x30 => a / operand,
                        0x40 => a | operand,
                        0x50 => a & operand,
                        0x60 => a << (operand & 31),
                        0x70 => a >> (operand & 31),
                        _ => a ^ operand,
                    }
                }
                _ => {
                    let holds = match code & 0xf0 {
                        0x10 => a == operand,
                        0x20 => a > operand,
                        0x30 => a >= operand,
                        _ => a & operand != 0,
                    };
                    at += (word >> if holds { 16 } else { 24 }) as usize & 0xff;
                }
            }
        }
    }

    /// Random words: those that pass the check mean what the machine's definition says, and all
    /// that it allows is accepted often enough to be tried.
    #[test]
    fn programs_do_what_their_instructions_say() {
        let codes = [
            0x20, 0x80, 0x81, 0x00, 0x01, 0x60, 0x61, 0x02, 0x03, 0x07, 0x87, 0x06, 0x16, 0x84,
            0x05, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64,
            0x6c, 0x74, 0x7c, 0xa4, 0xac, 0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d,
        ];
        let mut random = Random::new(7);
        let mut accepted = [0; 41];
        for _ in 0..200_000 {
            let len = 1 + random.below(6);
            let mut chosen = Vec::new();
            let mut words = Vec::new();
            for at in 0..len {
                let n = random.below(codes.len());
                let code = if at + 1 == len { 6 } else { codes[n] };
                chosen.push(if at + 1 == len { 11 } else { n });
                let k = random.below(if code == 0x20 { 64 } else { 6 }) as u32;
                let skips = [random.below(4) as u8, random.below(4) as u8];
                words.push(op(code, k, skips));
            }
            if let Ok(program) = program(&words) {
                chosen.iter().for_each(|&n| accepted[n] += 1);
                let data = data(&mut random);
                assert_eq!(program.run(&data), model(&words, &data), "{words:x?}");
            }
        }
        assert!(accepted.iter().all(|&n| n > 50), "{accepted:?}");
    }

    #[test]
    fn what_linux_refuses_is_refused() {
        const ALLOW: u64 = 6;
        let refused: &[&[u64]] = &[
            &[],
            // No end, or one that a jump passes.
            &[op(0, 1, [0; 2])],
            &[op(5, 1, [0; 2]), ALLOW],
            &[op(5, u32::MAX, [0; 2]), ALLOW],
            &[op(0x15, 0, [1, 0]), ALLOW],
            &[op(0x15, 0, [0, 1]), ALLOW],
            // Data beyond the end, or not on a word; bytes and halves of it.
            &[op(0x20, 64, [0; 2]), ALLOW],
            &[op(0x20, 2, [0; 2]), ALLOW],
            &[op(0x30, 0, [0; 2]), ALLOW],
            &[op(0x28, 0, [0; 2]), ALLOW],
            &[op(0x40, 0, [0; 2]), ALLOW],
            // Memory beyond the end, or never written on one of two ways.
            &[op(2, 16, [0; 2]), ALLOW],
            &[op(0x60, 0, [0; 2]), ALLOW],
            &[
                op(0x15, 0, [0, 1]),
                op(2, 0, [0; 2]),
                op(0x60, 0, [0; 2]),
                ALLOW,
            ],
            // No quotient, too far a shift, no remainder.
            &[op(0x34, 0, [0; 2]), ALLOW],
            &[op(0x64, 32, [0; 2]), ALLOW],
            &[op(0x94, 3, [0; 2]), ALLOW],
            &[op(0xffff, 0, [0; 2]), ALLOW],
        ];
        for words in refused {
            assert_eq!(
                program(words).map(|it| it.len()),
                Err(Errno::EINVAL),
                "{words:x?}"
            );
        }
        assert_eq!(program(&[ALLOW; 4096]).map(|it| it.len()), Ok(4096));
        assert!(program(&[ALLOW; 4097]).is_err());
        let written = [op(2, 0, [0; 2]), op(0x60, 0, [0; 2]), ALLOW];
        assert!(program(&written).is_ok());
        assert!(Program::new(Use::Seccomp, 1, |_| Err(Errno::EFAULT)).is_err());
    }

    struct Bytes(Vec<u8>);

    impl Packet for Bytes {
        fn len(&self) -> u32 {
            self.0.len() as u32
        }

        fn peek(&self, at: u32, to: &mut [u8]) -> bool {
            let from = self
                .0
                .get(at as usize..)
                .and_then(|rest| rest.get(..to.len()));
            from.map(|from| to.copy_from_slice(from)).is_some()
        }

        fn peek_link(&self, at: u32, to: &mut [u8]) -> bool {
            self.peek(at, to)
        }

        fn peek_network(&self, at: u32, to: &mut [u8]) -> bool {
            self.peek(at + 14, to)
        }

        fn known(&self, what: u32) -> Option<u32> {
            (what == 8).then_some(7)
        }
    }

    fn filter(words: &[u64]) -> Result<Program> {
        Program::new(Use::Socket, words.len(), |at| Ok(words[at]))
    }

    /// The filter of `tcpdump 'tcp dst port 80'` for Ethernet, IPv4 only.
    #[test]
    fn a_filter_finds_its_packets() {
        let words = [
            op(0x28, 12, [0; 2]),
            op(0x15, 0x800, [0, 6]),
            op(0x30, 23, [0; 2]),
            op(0x15, 6, [0, 4]),
            op(0xb1, 14, [0; 2]),
            op(0x48, 16, [0; 2]),
            op(0x15, 80, [0, 1]),
            op(6, 65_535, [0; 2]),
            op(6, 0, [0; 2]),
        ];
        let program = filter(&words).unwrap();
        let packet = |port: u16, options: u8| {
            let mut bytes = vec![0; 60];
            bytes[12..14].copy_from_slice(&[8, 0]);
            bytes[14] = 0x45 + options;
            bytes[23] = 6;
            let at = 14 + 20 + usize::from(options) * 4 + 2;
            bytes[at..at + 2].copy_from_slice(&port.to_be_bytes());
            Bytes(bytes)
        };
        for options in [0, 3] {
            assert_eq!(program.run_on_packet(&packet(80, options)), 65_535);
            assert_eq!(program.run_on_packet(&packet(81, options)), 0);
        }
        assert_eq!(program.run_on_packet(&Bytes(vec![0; 13])), 0, "too short");
        // The number of the interface, and the network's header.
        let known = filter(&[op(0x20, KNOWN + 8, [0; 2]), op(0x16, 0, [0; 2])]).unwrap();
        assert_eq!(known.run_on_packet(&packet(80, 0)), 7);
        let network = filter(&[op(0x30, NETWORK, [0; 2]), op(0x16, 0, [0; 2])]).unwrap();
        assert_eq!(network.run_on_packet(&packet(80, 0)), 0x45);
    }

    /// Random filters on random packets end, and load nothing from beyond the packet.
    #[test]
    fn random_filters_are_survived() {
        let codes = [
            0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1, 0x80, 0x81, 0x00, 0x01, 0x60, 0x61, 0x02,
            0x03, 0x07, 0x87, 0x16, 0x84, 0x05, 0x04, 0x0c, 0x14, 0x24, 0x34, 0x3c, 0x94, 0x9c,
            0x54, 0x64, 0x6c, 0x7c, 0xa4, 0x15, 0x1d, 0x25, 0x35, 0x45,
        ];
        let edges = [
            0,
            1,
            4,
            14,
            u32::MAX,
            KNOWN,
            KNOWN + 8,
            KNOWN + 63,
            NETWORK,
            LINK,
            LINK - 1,
        ];
        let mut random = Random::new(11);
        let (mut accepted, mut taken) = (0, 0);
        for _ in 0..200_000 {
            let len = 1 + random.below(8);
            let words: Vec<u64> = (0..len)
                .map(|at| {
                    let code = if at + 1 == len {
                        0x16
                    } else {
                        codes[random.below(codes.len())]
                    };
                    let k = match random.below(3) {
                        0 => edges[random.below(edges.len())],
                        1 => random.below(70) as u32,
                        _ => random.below(1 << 32) as u32,
                    };
                    op(code, k, [random.below(4) as u8, random.below(4) as u8])
                })
                .collect();
            if let Ok(program) = filter(&words) {
                accepted += 1;
                let bytes = (0..random.below(80)).map(|at| at as u8 * 3).collect();
                taken += u32::from(program.run_on_packet(&Bytes(bytes)) > 0);
            }
        }
        assert!(accepted > 10_000 && taken > 1000, "{accepted} {taken}");
    }
}
