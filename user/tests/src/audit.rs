//! The kernel's audit of page tables, beside programs that change them.

use crate::proc::only_causeway;
use support::prelude::*;

pub const TESTS: &[Test] = &[("audit: page tables beside all that changes them", beside)];

const FILE: &str = "/proc/causeway/audit";

/// What must hold after each test: no page table, frame or mapping of the kernel is wrong.
pub fn nothing_is_wrong() -> Outcome {
    if !fs::exists(FILE).unwrap_or(false) {
        return Ok(());
    }
    let text = read_text(FILE)?;
    ensure!(text.ends_with("\nviolations 0\n"), "the audit says: {text}");
    Ok(())
}

/// Maps, forks, protects and unmaps until it is told to stop.
fn churn(stop: &AtomicBool) -> Outcome {
    while !stop.load(SeqCst) {
        let memory = map(600 * PAGE)?;
        touch(memory, 600 * PAGE, 1);
        child(|| {
            touch(memory, 64 * PAGE, 2);
            Ok(())
        })?;
        call!(mprotect(memory.cast(), 300 * PAGE, libc::PROT_READ));
        unmap(memory, 600 * PAGE)?;
    }
    Ok(())
}

fn number(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.ok_or("no such line")?.trim().parse()?)
}

fn beside() -> Outcome {
    only_causeway()?;
    let stop = shared_value(AtomicBool::new(false))?;
    let others: Result<Vec<_>> = (0..3).map(|_| spawn(|| churn(stop))).collect();
    let others = others?;
    let audits = || {
        for _ in 0..5 {
            nothing_is_wrong()?;
        }
        let text = read_text(FILE)?;
        for name in ["tables", "entries", "frames", "kernel_pages"] {
            ensure!(number(&text, name)? > 20, "{text}");
        }
        Ok(())
    };
    let outcome = audits();
    stop.store(true, SeqCst);
    for other in others {
        wait_ok(other)?;
    }
    outcome?;
    // Not for others.
    child(|| {
        call!(setresuid(1000, 1000, 1000));
        let refused = fs::read(FILE).map_err(|it| it.raw_os_error());
        equal!(refused.map(drop), Err(Some(libc::EACCES)));
        Ok(())
    })
}
