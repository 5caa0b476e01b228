//! What the program says that installs Debian's packages: how far it is, and why it failed.

use super::debian::{INSTALLER, SUITE};
use super::progress::Step;

/// Follows the installer by its lines.
#[derive(Default)]
pub(super) struct Progress {
    step: Option<Step>,
    /// Packages that will be installed, and those that are.
    total: u64,
    done: u64,
}

impl Progress {
    /// Takes its next line.
    pub(super) fn line(&mut self, line: &str) {
        const STEPS: [&str; 5] = [
            "running apt-get update...",
            "downloading packages with apt...",
            "installing essential packages...",
            "installing remaining packages inside the chroot...",
            "installing more packages inside the chroot...",
        ];
        if let Some(step) = line.strip_prefix("I: ").filter(|step| STEPS.contains(step)) {
            let step = step.trim_end_matches('.');
            // Its bar goes before the next one comes.
            self.step = None;
            self.step = Some(match self.total {
                0 => Step::unmeasured(step),
                total => Step::items(step, total, "packages"),
            });
        } else if let Some(total) = line.strip_prefix("causeway: packages ") {
            self.total = total.trim().parse().unwrap_or(0);
        } else if let Some(warning) = line.strip_prefix("causeway: warning ") {
            self.step = None;
            eprintln!("causeway: {warning}; going on with those that fit");
        } else if line.starts_with("Setting up ") {
            self.done += 1;
        }
        if let (Some(step), Some(part)) = (&self.step, part(line)) {
            step.show(&part);
            step.reach(self.done.min(self.total));
        }
    }
}

/// The package that a line of apt's or dpkg's is about, and what happens to it.
fn part(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [get, _, _, "amd64" | "i386" | "all", name, ..] if get.starts_with("Get:") => {
            Some(format!("fetching {name}"))
        }
        ["Unpacking", name, ..] => Some(format!("unpacking {name}")),
        ["Setting", "up", name, ..] => Some(format!("setting up {name}")),
        _ => None,
    }
}

/// The best of these names for one that does not exist.
fn near<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    /// Below this a name has nothing to do with the other.
    const SIMILAR: f64 = 0.9;
    let mut near: Vec<(f64, &str)> = names
        .map(|name| (strsim::jaro_winkler(wanted, name), name))
        .filter(|&(likeness, _)| likeness >= SIMILAR)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    near.dedup();
    near.into_iter().map(|(_, name)| name).take(3).collect()
}

/// The reason of the installer's failure, from its output: a sentence where the cause is known, and
/// its own errors else.
pub(super) fn explain(said: &[String]) -> String {
    let find = |text: &str| said.iter().find(|line| line.contains(text));
    let unknown: Vec<&str> = said
        .iter()
        .filter_map(|line| {
            let missing = line.split_once("Unable to locate package ");
            let absent = || line.split_once("has no installation candidate");
            missing
                .map(|(_, name)| name.trim())
                .or_else(|| absent().and_then(|(start, _)| start.split('\'').nth(1)))
        })
        .collect();
    if !unknown.is_empty() {
        let named = unknown.iter().map(|wanted| {
            let names = said
                .iter()
                .filter_map(|line| line.strip_prefix("causeway: name "));
            match near(wanted, names) {
                near if near.is_empty() => (*wanted).to_owned(),
                near => format!("{wanted} (is it {}?)", near.join(" or ")),
            }
        });
        let named: Vec<String> = named.collect();
        return format!("Debian {SUITE} has no package {}", named.join(", "));
    }
    let unreachable = [
        "Temporary failure resolving",
        "Could not resolve",
        "Could not connect",
        "Cannot initiate the connection",
        "Failed to fetch",
    ];
    if let Some(line) = unreachable.iter().find_map(|text| find(text)) {
        return format!(
            "the package server cannot be reached, and this set of packages has not been \
             installed here before: {}",
            line.trim()
        );
    }
    let no_namespace = ["newuidmap", "subuid", "unable to pick chroot mode"];
    if no_namespace.iter().any(|text| find(text).is_some()) {
        return "this needs root, or a user with subordinate ids: install Debian's package uidmap \
                and add a line for this user to /etc/subuid and /etc/subgid (`usermod \
                --add-subuids 100000-165535 --add-subgids 100000-165535 USER`)"
            .into();
    }
    let lines = || said.iter().map(|line| line.trim_end());
    let is_error = |line: &&str| line.starts_with("E: ") || line.starts_with("dpkg: error");
    let mut own: Vec<&str> = lines().filter(is_error).collect();
    if own.is_empty() {
        own = lines()
            .filter(|line| !line.is_empty() && !line.starts_with("I: "))
            .collect();
    }
    let last = &own[own.len().saturating_sub(12)..];
    format!("{INSTALLER} failed:\n  {}", last.join("\n  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_explained() {
        let said = |text: &str| explain(&text.lines().map(Into::into).collect::<Vec<_>>());
        assert_eq!(
            said("I: x\nE: Unable to locate package foo\nE: apt-get failed"),
            "Debian bookworm has no package foo"
        );
        assert!(said("E: Package 'bar' has no installation candidate").ends_with("package bar"));
        assert!(said("W: Temporary failure resolving 'x'").contains("cannot be reached"));
        assert!(said("I: a\nE: something else").ends_with("E: something else"));
        let mode = "E: unable to pick chroot mode automatically (use --mode for manual selection)";
        assert!(said(mode).contains("uidmap"));
        let names = "causeway: name sqlite3\ncauseway: name squid\ncauseway: name zip";
        let missing = said(&format!("E: Unable to locate package sqlite\n{names}"));
        assert!(missing.ends_with("sqlite (is it sqlite3?)"), "{missing}");
    }

    #[test]
    fn lines_of_packages_are_told() {
        let get =
            "Get:12 http://deb.debian.org/debian bookworm/main amd64 gcc-12 amd64 12.2 [2 kB]";
        assert_eq!(part(get).as_deref(), Some("fetching gcc-12"));
        let line = "Setting up zip (3.0-13) ...";
        assert_eq!(part(line).as_deref(), Some("setting up zip"));
        assert_eq!(part("Reading package lists..."), None);
    }
}
