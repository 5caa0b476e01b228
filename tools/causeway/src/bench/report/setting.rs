//! The machine, the kernels, the commands, and how to read the figures.

use maud::{Markup, html};

use super::head::count;
use super::view::View;
use crate::bench::results::{Clock, Machine};

/// The last part of the page.
pub fn setting(view: &View) -> Markup {
    let machine = &view.results.machine;
    html! {
        section.part id="setting" {
            h2 { "Machine and commands" }
            dl.setting { (facts(view, machine)) }
            h3 { "Kernels" }
            div.scroll tabindex="0" role="region" aria-label="Kernels" {
                table {
                    caption { "The first is judged, the second is what it is held against; further ones are the first with mechanisms switched off." }
                    thead { tr { th scope="col" { "Kernel" } th scope="col" { "Version" } th scope="col" { "Commit" } th scope="col" { "Options" } } }
                    tbody {
                        @for (kernel, name) in view.results.kernels.iter().zip(&view.names) {
                            tr {
                                th scope="row" { (name) }
                                td { (kernel.version) }
                                td { @if let Some(commit) = &kernel.commit { code { (commit) } } @else { "–" } }
                                td { @if kernel.options.is_empty() { "none" } @else { code { (kernel.options) } } }
                            }
                        }
                    }
                }
            }
            h3 { "Commands that repeat this" }
            pre tabindex="0" { code { @for command in &machine.commands { (command) "\n" } } }
            h3 { "How to read the figures" }
            (method(view))
        }
    }
}

fn facts(view: &View, machine: &Machine) -> Markup {
    let clock = match machine.clock {
        Clock::Kvm => "time of the host’s processor, which runs the guest itself (KVM)",
        Clock::Tcg => "time of QEMU’s software emulation (TCG)",
        Clock::Busy => "instructions that the CPU executed, one a nanosecond; idle time is none",
        Clock::Icount => "instructions, one a nanosecond (-icount)",
    };
    let mitigations = match machine.mitigations.as_str() {
        "default" => "as each kernel ships",
        other => other,
    };
    let set = match machine.set.as_str() {
        "short" => "the short set",
        "full" => "the full set",
        other => other,
    };
    let pairs = count(view.results.pairs as usize, "pair");
    let facts: [(&str, String); 9] = [
        ("Clock", clock.into()),
        ("Accelerator", machine.accelerator.clone()),
        ("QEMU", machine.qemu.clone()),
        (
            "Guest",
            format!(
                "{}, {}",
                count(machine.cpus as usize, "CPU"),
                machine.memory
            ),
        ),
        ("Host", machine.host.clone()),
        ("Mitigations", mitigations.into()),
        (
            "Measured",
            match view.results.calm {
                Some(calm) => format!(
                    "{set}, {pairs}; the host was calm in {:.0}% of the turns",
                    calm * 100.0
                ),
                None => format!("{set}, {pairs}"),
            },
        ),
        ("Began", date(machine.began)),
        ("Flags", machine.flags.clone()),
    ];
    html! {
        @for (name, text) in facts.iter().filter(|(_, text)| !text.is_empty()) {
            dt { (name) }
            dd { @if *name == "Flags" { code { (text) } } @else { (text) } }
        }
    }
}

fn method(view: &View) -> Markup {
    html! {
        ul.method {
            li { "Each row is warmed up, then measured in batches of a fixed number of operations; the value of a boot is the median of its batches." }
            @if view.is_pair() {
                li { "The kernels are alive at once and measure row by row in turn: what slows the host for a while slows both. They pass through all rows again and again, until each had two turns while a fixed piece of work, before and after, showed the host to be calm, or there was no time for more. Each CPU of theirs keeps to one processor of the host, where it has as many. Of a kernel's turns for a row in one boot the best counts. The ratio is taken inside each pair; the table shows the median, the least and the greatest of these." }
            }
            @if view.results.machine.clock.counts() {
                li { "A time is a number of instructions (instr), and a second in a rate is a billion of them." }
            }
            li { "Bars on a mark reach from the least to the greatest of the boots." }
            li { span.noise { "noise" } " marks a row whose median may be more than 7% away from what more pairs would give (by the middle half of the pairs and their number)." }
            li { "A floor is what the bare machine takes for the least that an operation needs, measured by the kernel itself in the same boots." }
            li { "The papers’ numbers are those of their texts, on the machines of their days; compare their shapes and ratios, not their sizes." }
        }
    }
}

/// A time since 1970 as a date and a time of day (UTC).
fn date(seconds: u64) -> String {
    let seconds = seconds.min(datealgo::RD_SECONDS_MAX as u64) as i64;
    let (year, month, day, hour, minute, _) = datealgo::secs_to_datetime(seconds);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_735_689_600), "2025-01-01 00:00 UTC");
    }
}
