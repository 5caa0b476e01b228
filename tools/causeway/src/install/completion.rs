//! Completion scripts for shells.

use clap::Command;
use clap_complete::{Shell, generate};

use super::{File, NAME};

/// The shells, and where each looks for scripts below a prefix.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/causeway"),
    (Shell::Zsh, "share/zsh/site-functions/_causeway"),
    (Shell::Fish, "share/fish/vendor_completions.d/causeway.fish"),
];

/// A script for each shell.
pub fn scripts(command: &Command) -> impl Iterator<Item = File> {
    let command = visible(command);
    SHELLS.into_iter().map(move |(shell, path)| {
        let mut script = Vec::new();
        generate(shell, &mut command.clone(), NAME, &mut script);
        File::new(path, script)
    })
}

/// The command without its hidden subcommands and options, which `clap_complete` would offer.
fn visible(command: &Command) -> Command {
    let subcommands = command.get_subcommands().filter(|it| !it.is_hide_set());
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
    let mut shown = Command::new(command.get_name().to_string())
        .args(arguments.cloned())
        .subcommands(subcommands.map(visible));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_string());
    }
    shown
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::manual::for_each;
    use super::*;
    use crate::options::Options;

    #[test]
    fn each_script_knows_every_option_of_every_subcommand() {
        let command = Options::command();
        for script in scripts(&command) {
            let text = String::from_utf8(script.bytes).unwrap();
            assert!(!text.contains("destdir"), "{:?}", script.path);
            let is_fish = script.path.extension().is_some_and(|it| it == "fish");
            for_each(&command, &mut |command| {
                assert!(text.contains(command.get_name()), "{}", command.get_name());
                for option in command.get_opts() {
                    let Some(long) = option.get_long() else {
                        continue;
                    };
                    let word = if is_fish { "-l " } else { "--" }.to_owned() + long;
                    let is_offered = text.contains(&word);
                    assert_eq!(
                        is_offered,
                        !option.is_hide_set(),
                        "{:?}: {word}",
                        script.path
                    );
                }
            });
        }
    }
}
