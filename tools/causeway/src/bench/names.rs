//! The names of experiments, and the ones that the user means.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// How alike two names must be, from 0 to 1, for one to be offered in the other's place.
const ALIKE: f64 = 0.7;

/// An experiment of the guest's program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    pub name: String,
    pub title: String,
}

/// The experiments in the order in which the guest runs them. The program is a Linux program: it
/// lists them here.
///
/// # Errors
/// When it does not run on this machine.
pub fn known(program: &Path) -> Result<Vec<Known>> {
    let output = Command::new(program)
        .arg("--list")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        bail!("{} --list ended with {}", program.display(), output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let known: Vec<Known> = text
        .lines()
        .filter_map(|line| {
            let (name, title) = line.split_once(char::is_whitespace)?;
            Some(Known {
                name: name.into(),
                title: title.trim().into(),
            })
        })
        .collect();
    if known.is_empty() {
        bail!("{} knows no experiments", program.display());
    }
    Ok(known)
}

/// The experiments that the user named, in the guest's order; all, if none is named.
///
/// # Errors
/// A sentence with the unknown names and the most similar known ones.
pub fn chosen(asked: &[String], known: &[Known]) -> Result<Vec<String>> {
    let names = || known.iter().map(|it| it.name.as_str());
    for name in asked {
        if names().any(|it| it == name) {
            continue;
        }
        let lower = name.to_lowercase();
        let score = |it: &str| {
            let part = it.contains(&lower) || lower.split('/').any(|part| part == it);
            if part {
                1.0
            } else {
                strsim::jaro_winkler(it, &lower)
            }
        };
        let mut close: Vec<&str> = names().filter(|it| score(it) >= ALIKE).collect();
        close.sort_by(|a, b| score(b).total_cmp(&score(a)));
        close.truncate(3);
        let advice = if close.is_empty() {
            format!("there are {}", names().collect::<Vec<_>>().join(", "))
        } else {
            format!("do you mean {}?", close.join(" or "))
        };
        bail!("no experiment is named {name}: {advice} (causeway bench --list)");
    }
    let wanted = |name: &&str| asked.is_empty() || asked.iter().any(|it| it == name);
    Ok(names().filter(wanted).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known_names() -> Vec<Known> {
        let known = |name: &str| Known {
            name: name.into(),
            title: "t".into(),
        };
        ["calls", "fork", "pipe", "unix-pipe"].map(known).to_vec()
    }

    fn choose(words: &str) -> Result<String, String> {
        let asked: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let chosen = chosen(&asked, &known_names());
        chosen
            .map(|names| names.join(" "))
            .map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn names_come_in_the_guests_order() {
        assert_eq!(choose("").unwrap(), "calls fork pipe unix-pipe");
        assert_eq!(choose("pipe calls pipe").unwrap(), "calls pipe");
    }

    #[test]
    fn a_wrong_name_is_answered_with_what_may_be_meant() {
        for (wrong, meant) in [
            ("frok", "do you mean fork?"),
            ("pip", "do you mean pipe or unix-pipe?"),
            ("fork/empty", "do you mean fork?"),
            ("zzz", "there are calls, fork, pipe, unix-pipe"),
        ] {
            let error = choose(wrong).unwrap_err();
            assert!(error.contains(wrong) && error.contains(meant), "{error}");
        }
    }
}
