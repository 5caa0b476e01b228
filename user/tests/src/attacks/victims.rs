//! The smallest programs with rights that an attacker does not have, and where they stand. They are
//! assembled here, so that all their memory stands at known addresses.

use support::prelude::*;

/// The address of a program.
const BASE: u64 = 0x1000_0000;
/// The offsets of its code and of its data, and its size.
const CODE: usize = 0x80;
const DATA: usize = 0x800;
const SIZE: usize = 0x1000;
/// The address of the word that [`watch`] looks at.
pub const WORD: usize = BASE as usize + DATA;
/// What the word holds.
pub const SECRET: u32 = 0x5ec2_e751;
/// The status of a victim that was attacked with success.
pub const BEATEN: i32 = 77;

/// The folder that only root enters, and that victims hold.
pub struct Place {
    pub folder: String,
    pub secret: String,
}

/// Makes a folder that the attacker may write to, and a secret one in it.
pub fn place() -> Result<Place> {
    let folder = folder("view")?;
    fs::set_permissions(&folder, Permissions::from_mode(0o777))?;
    let secret = format!("{folder}/secret");
    fs::create_dir_all(&secret)?;
    fs::set_permissions(&secret, Permissions::from_mode(0o700))?;
    Ok(Place { folder, secret })
}

impl Place {
    /// Installs a set-uid program of root's.
    pub fn victim(&self, code: Code) -> Result<CString> {
        let path = format!("{}/victim", self.folder);
        code.write(&path, 0o4755)?;
        Ok(c(&path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The environment of each victim.
pub const MARK: &CStr = c"VICTIM=yes";

/// Replaces this process's program; never returns.
pub fn execute(path: &CStr) -> Outcome {
    let (words, environment) = ([path.as_ptr(), null()], [MARK.as_ptr(), null()]);
    call!(execve(path.as_ptr(), words.as_ptr(), environment.as_ptr()));
    Ok(())
}

/// Code of a program.
#[derive(Default)]
pub struct Code {
    bytes: Vec<u8>,
    /// A text behind the word.
    text: Vec<u8>,
}

/// The address of a program's text.
const TEXT: u32 = BASE as u32 + DATA as u32 + 16;

impl Code {
    /// Makes a system call with constant arguments.
    fn call(mut self, number: c_long, arguments: [u32; 3]) -> Self {
        // mov eax, edi, esi, edx
        for (move_to, value) in [0xb8, 0xbf, 0xbe, 0xba]
            .into_iter()
            .zip([number as u32].into_iter().chain(arguments))
        {
            self.bytes.push(move_to);
            self.bytes.extend(value.to_le_bytes());
        }
        self.bytes.extend([0x0f, 0x05]);
        self
    }

    /// Compares the word with the secret so many times; ends with [`BEATEN`] if it differs.
    fn watch(mut self, times: u32) -> Self {
        self.bytes.push(0xb9); // mov ecx, times
        self.bytes.extend(times.to_le_bytes());
        self.bytes.extend([0x81, 0x3c, 0x25]); // again: cmp dword [WORD], SECRET
        self.bytes.extend((WORD as u32).to_le_bytes());
        self.bytes.extend(SECRET.to_le_bytes());
        self.bytes.extend([0x74, 22]); // je same
        self.call(SYS_exit_group, [BEATEN as u32, 0, 0])
            .and(&[0xff, 0xc9, 0x75, 0xd9]) // same: dec ecx; jnz again
    }

    fn and(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    fn end(self) -> Self {
        self.call(SYS_exit_group, [0; 3])
    }

    /// Ends with the low bits of `eax`.
    fn end_with_eax(self) -> Self {
        // mov edi, eax; mov eax, SYS_exit_group
        self.and(&[0x89, 0xc7, 0xb8, 231, 0, 0, 0, 0x0f, 0x05])
    }

    /// Ends with [`BEATEN`] if `eax` is 0.
    fn end_beaten_by_zero(self) -> Self {
        // mov edi, BEATEN; test eax, eax; jz end; xor edi, edi; end: SYS_exit_group
        self.and(&[0xbf, BEATEN as u8, 0, 0, 0, 0x85, 0xc0, 0x74, 2, 0x31, 0xff])
            .and(&[0xb8, 231, 0, 0, 0, 0x0f, 0x05])
    }

    fn text(mut self, text: &str) -> Self {
        self.text = c(text).into_bytes_with_nul();
        self
    }

    /// Writes the program to `path`, with this mode, as the caller's.
    pub fn write(self, path: &str, mode: u32) -> Outcome {
        let mut image = Vec::new();
        image.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        image.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        for value in [BASE + CODE as u64, 64, 0] {
            image.extend(value.to_le_bytes());
        }
        image.extend([0; 4]);
        for value in [64u16, 56, 1, 0, 0, 0] {
            image.extend(value.to_le_bytes());
        }
        image.extend([1, 0, 0, 0, 7, 0, 0, 0]); // loaded, may do everything
        for value in [0, BASE, BASE, SIZE as u64, SIZE as u64, PAGE as u64] {
            image.extend(value.to_le_bytes());
        }
        image.resize(CODE, 0);
        image.extend(&self.bytes);
        ensure!(image.len() <= DATA, image.len());
        image.resize(DATA, 0);
        image.extend(SECRET.to_le_bytes());
        image.resize(DATA + 16, 0);
        image.extend(&self.text);
        image.resize(SIZE, 0);
        fs::write(path, image)?;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        Ok(())
    }
}

/// Looks at its word for a few milliseconds.
pub fn watch() -> Code {
    Code::default().watch(200_000).end()
}

/// Looks at its word until it is killed.
pub fn watch_for_long() -> Code {
    Code::default().watch(u32::MAX).end()
}

/// Makes the folder its working directory, opens it, and goes on for a few milliseconds.
pub fn holder(folder: &str) -> Code {
    Code::default()
        .text(folder)
        .call(SYS_chdir, [TEXT, 0, 0])
        .call(SYS_open, [TEXT, O_RDONLY as u32, 0])
        .watch(200_000)
        .end()
}

/// Ends with [`BEATEN`] if it is root.
pub fn rights() -> Code {
    Code::default()
        .call(SYS_geteuid, [0; 3])
        .end_beaten_by_zero()
}

/// Ends with [`BEATEN`] if it is root and somebody else's filters stand before its system calls.
pub fn filtered() -> Code {
    const PR_GET_SECCOMP: u32 = 21;
    // test eax, eax; jz over the exit; PR_GET_SECCOMP; sub eax, SECCOMP_MODE_FILTER
    Code::default()
        .call(SYS_geteuid, [0; 3])
        .and(&[0x85, 0xc0, 0x74, 22])
        .end()
        .call(SYS_prctl, [PR_GET_SECCOMP, 0, 0])
        .and(&[0x83, 0xe8, 2])
        .end_beaten_by_zero()
}

/// Ends with [`BEATEN`] if it may change its root directory.
pub fn changes_root() -> Code {
    Code::default()
        .text("/")
        .call(SYS_chroot, [TEXT, 0, 0])
        .end_beaten_by_zero()
}

/// Ends with bits of the address of its stack.
pub fn stack() -> Code {
    // mov rax, rsp; shr rax, 12
    Code::default()
        .and(&[0x48, 0x89, 0xe0, 0x48, 0xc1, 0xe8, 12])
        .end_with_eax()
}

/// Copies what it can read at once from its standard input to its standard output.
pub fn copier() -> Code {
    let buffer = BASE as u32 + 0xa00;
    Code::default()
        .call(SYS_read, [0, buffer, 0x400])
        .and(&[0x89, 0xc2]) // mov edx, eax
        // mov eax, SYS_write; mov edi, 1; mov esi, buffer
        .and(&[0xb8, 1, 0, 0, 0, 0xbf, 1, 0, 0, 0, 0xbe])
        .and(&buffer.to_le_bytes())
        .and(&[0x0f, 0x05])
        .end()
}
