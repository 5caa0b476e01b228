//! The manual: a page for the program, and one for each subcommand.
//!
//! `clap_mangen` writes all but the text after the options, which it would run together: examples
//! and exit statuses stand in lines of their own.

use anyhow::Result;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::File;

/// All pages.
///
/// # Errors
/// None that a user can cause.
pub fn pages(command: &Command) -> Result<Vec<File>> {
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    let mut outcome = Ok(());
    for_each(&command, &mut |command| match page(command) {
        Ok(page) => pages.push(page),
        Err(why) => outcome = Err(why),
    });
    outcome.map(|()| pages)
}

/// Calls `each` with a command that was built and with all below it that are not hidden.
pub fn for_each(command: &Command, each: &mut impl FnMut(&Command)) {
    each(command);
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    shown.for_each(|it| for_each(it, each));
}

fn page(command: &Command) -> Result<File> {
    let after = command.get_after_help().map(ToString::to_string);
    let man = Man::new(command.clone()).source(format!("causeway {}", env!("CARGO_PKG_VERSION")));
    let mut bytes = Vec::new();
    man.render_title(&mut bytes)?;
    man.render_name_section(&mut bytes)?;
    man.render_synopsis_section(&mut bytes)?;
    man.render_description_section(&mut bytes)?;
    man.render_options_section(&mut bytes)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut bytes)?;
    }
    after_options(&after.unwrap_or_default()).to_writer(&mut bytes)?;
    Ok(File::new(
        format!("share/man/man1/{}", man.get_filename()),
        bytes,
    ))
}

/// The text after the options: a paragraph whose first line ends with a colon becomes a section
/// with its lines as they are, others are notes.
fn after_options(text: &str) -> Roff {
    let mut roff = Roff::new();
    let mut is_in_notes = false;
    for paragraph in text.split("\n\n").filter(|it| !it.trim().is_empty()) {
        if let Some((title, lines)) = paragraph.split_once(":\n") {
            roff.control("SH", [title.to_uppercase().as_str()]);
            roff.control("nf", []);
            for line in lines.lines() {
                roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
            roff.control("fi", []);
            is_in_notes = false;
        } else {
            if is_in_notes {
                roff.control("PP", []);
            } else {
                roff.control("SH", ["NOTES"]);
            }
            roff.text([roman(paragraph.trim())]);
            is_in_notes = true;
        }
    }
    roff
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::options::Options;

    fn manual() -> Vec<(String, String)> {
        let pages = pages(&Options::command()).unwrap();
        let text = |page: File| {
            let name = page
                .path
                .file_name()
                .unwrap()
                .to_string_lossy()
                .into_owned();
            // As it is read: without the marks for fonts and the protected hyphens.
            let text = String::from_utf8(page.bytes).unwrap().replace("\\-", "-");
            (name, text.replace("\\fB", "").replace("\\fR", ""))
        };
        pages.into_iter().map(text).collect()
    }

    #[test]
    fn each_subcommand_has_a_page_that_names_its_options() {
        let manual = manual();
        let mut command = Options::command().disable_help_subcommand(true);
        command.build();
        let mut count = 0;
        for_each(&command, &mut |command| {
            let name = command.get_display_name().unwrap_or("causeway");
            let page = manual.iter().find(|page| page.0 == format!("{name}.1"));
            let (_, text) = page.unwrap_or_else(|| panic!("no page {name}"));
            let shown = command.get_opts().filter(|option| !option.is_hide_set());
            for option in shown.filter_map(|option| option.get_long()) {
                assert!(text.contains(&format!("--{option}")), "{name}: --{option}");
            }
            count += 1;
        });
        assert_eq!(manual.len(), count);
        assert!(count > 10 && manual.iter().any(|page| page.0 == "causeway-root-debian.1"));
        assert!(!manual.iter().any(|page| page.0 == "causeway-install.1"));
    }

    #[test]
    fn lines_after_the_options_stay_lines() {
        let manual = manual();
        let run = manual.iter().find(|page| page.0 == "causeway-run.1");
        let (_, text) = run.unwrap();
        let (_, section) = text.split_once(".SH \"EXIT STATUS\"\n.nf\n").unwrap();
        let (lines, notes) = section.split_once(".fi\n").unwrap();
        assert!(lines.lines().count() >= 8, "{lines}");
        assert!(notes.starts_with(".SH NOTES\nKeys: Ctrl-A"), "{notes}");
    }
}
