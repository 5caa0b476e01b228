//! The kernel's addresses as functions and lines.

use std::path::Path;

use addr2line::Loader;
use anyhow::{Result, anyhow};

use crate::profile::Detail;

/// The word that starts a log line of return addresses.
const BACKTRACE: &str = "backtrace:";
/// The word that starts the line before it: how far the kernel is from where it was linked.
const SLIDE: &str = "slide:";

/// Each line of `log` from the panic on, the return addresses replaced by functions and lines of
/// `kernel`.
pub fn panic_report(log: &[String], kernel: Option<&Path>) -> Vec<String> {
    let Some(first) = log.iter().position(|line| is_panic(line)) else {
        return Vec::new();
    };
    let loader = kernel.and_then(|kernel| Loader::new(kernel).ok());
    let mut report = Vec::new();
    let (mut depth, mut slide) = (0, 0);
    for line in &log[first..] {
        if let Some(distance) = line.strip_prefix(SLIDE) {
            let distance = distance.split(',').next().unwrap_or_default();
            slide = u64::from_str_radix(distance.trim(), 16).unwrap_or(0);
            continue;
        }
        let Some((_, addresses)) = line.split_once(BACKTRACE) else {
            report.push(line.clone());
            continue;
        };
        for address in addresses.split_ascii_whitespace() {
            report.extend(frames(loader.as_ref(), address, slide, depth));
            depth += 1;
        }
    }
    report
}

/// Whether a log line says that the kernel panicked. The panic itself writes it without a time; the
/// lines of programs (`/dev/kmsg`) have one.
pub fn is_panic(line: &str) -> bool {
    line.starts_with("panic:")
}

/// A log line without its time.
pub fn message(line: &str) -> &str {
    match line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "))
    {
        Some((time, message)) if time.trim().parse::<f64>().is_ok() => message,
        _ => line,
    }
}

fn frames(loader: Option<&Loader>, address: &str, slide: u64, depth: usize) -> Vec<String> {
    let digits = address.trim_start_matches("0x");
    let known = || {
        let loader = loader?;
        // A return address is that of the next instruction; the call is the byte before.
        let call = u64::from_str_radix(digits, 16)
            .ok()?
            .checked_sub(slide + 1)?;
        let mut lines = Vec::new();
        let mut found = loader.find_frames(call).ok()?;
        while let Ok(Some(frame)) = found.next() {
            let name = frame
                .function
                .as_ref()
                .and_then(|name| name.demangle().ok());
            let name = name.as_deref().unwrap_or("?").to_string();
            let place = frame.location.map_or_else(String::new, |location| {
                let file = location.file.unwrap_or("?");
                let file = std::env::current_dir()
                    .ok()
                    .and_then(|here| Path::new(file).strip_prefix(here).ok())
                    .map_or_else(|| file.to_string(), |path| path.display().to_string());
                format!("\n           at {file}:{}", location.line.unwrap_or(0))
            });
            let inlined = if lines.is_empty() {
                format!("{depth:4}:")
            } else {
                "     ".into()
            };
            lines.push(format!("{inlined} {digits:>16}  {name}{place}"));
        }
        if lines.is_empty() {
            let name = loader.find_symbol(call)?;
            lines.push(format!(
                "{depth:4}: {digits:>16}  {}",
                addr2line::demangle_auto(name.into(), None)
            ));
        }
        Some(lines)
    };
    known().unwrap_or_else(|| vec![format!("{depth:4}: {digits:>16}")])
}

/// A kernel's functions by address.
pub struct Functions(Loader);

impl Functions {
    /// The functions of this kernel's file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(kernel: &Path) -> Result<Self> {
        Loader::new(kernel)
            .map(Self)
            .map_err(|error| anyhow!("cannot read {}: {error}", kernel.display()))
    }

    /// Returns the name that an instruction is counted for.
    pub fn name(&self, address: u64, detail: Detail) -> String {
        named(&self.0, address, detail).unwrap_or_else(|| format!("{address:#x}"))
    }
}

fn named(loader: &Loader, address: u64, detail: Detail) -> Option<String> {
    if detail == Detail::Function {
        let name = loader.find_symbol(address)?;
        return Some(addr2line::demangle_auto(name.into(), None).into_owned());
    }
    let mut found = loader.find_frames(address).ok()?;
    let frame = found.next().ok()??;
    let location = frame.location?;
    let file = shortened(location.file?);
    if detail == Detail::Line {
        return Some(format!("{file}:{}", location.line?));
    }
    // Debugging information that has lines only gives the name without its module.
    let name = frame.function?;
    Some(format!("{} ({file})", name.demangle().ok()?))
}

/// Returns the end of a source file's path, from its crate's folder on.
fn shortened(file: &str) -> &str {
    let before = file.find("/src/").unwrap_or(0);
    let begin = file[..before].rfind('/').map_or(0, |slash| slash + 1);
    &file[begin..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_starts_at_the_panic() {
        let log = [
            "[0.1] up",
            "[0.2] panic: a program's line",
            "panic: boom (a.rs:1, CPU 0)",
            "slide: 8, direct map: ffff800000000000",
            "backtrace: 10 0x20",
        ];
        let log = log.map(String::from);
        let report = panic_report(&log, None);
        assert_eq!(report[0], "panic: boom (a.rs:1, CPU 0)");
        assert_eq!(report.len(), 3);
        assert!(report[2].contains("20"));
        assert!(panic_report(&log[..2], None).is_empty());
    }

    #[test]
    fn a_file_is_named_from_its_crate_on() {
        assert_eq!(shortened("/home/a/vm/src/map.rs"), "vm/src/map.rs");
        assert_eq!(shortened("map.rs"), "map.rs");
    }

    #[test]
    fn a_time_is_not_part_of_the_message() {
        assert_eq!(message("[    0.25] exit: status 3"), "exit: status 3");
        assert_eq!(message("[x] y"), "[x] y");
    }
}
