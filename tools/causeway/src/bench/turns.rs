//! Whose turn it is: the kernels of a pair are alive at once, and only one of them measures at any time.
//!
//! The speed of a busy host changes from second to second. So the guests say which row comes next and wait; each goes on
//! when the others have come as far, and the two sides of a ratio are measured within a second, a few times each. Which kernel goes first
//! changes from pair to pair, so that a host that grows slower or faster favours none.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

use super::collect::Collection;
use super::lines::{Line, Measured};
use super::machine::{Boot, Course, Side, Stage};
use super::progress::Progress;

/// After so many boots of a kernel without a word its other experiments are given up.
const SILENT_BOOTS: u32 = 2;

/// All boots of a bench.
pub struct Session {
    pub stage: Stage,
    pub sides: Vec<Side>,
    /// The experiments, in their order.
    pub names: Vec<String>,
    pub pairs: u32,
    /// The guests wait for their turn; else each runs from its boot to its end.
    pub paced: bool,
    pub collection: Collection,
    /// Set when the user wants no more.
    pub stop: Arc<AtomicBool>,
}

impl Session {
    /// Boots the kernels of each pair. Results are in `folder` after each.
    ///
    /// # Errors
    /// When QEMU cannot be started, or the results cannot be written.
    pub fn run(&mut self, folder: &Path) -> Result<()> {
        let experiments = |side: &Side| {
            side.names(&self.names).len() as u64 * u64::from(self.pairs.min(side.pairs))
        };
        let mut progress = Progress::new(self.sides.iter().map(experiments).sum());
        for pair in 1..=self.pairs {
            self.collection.begin(pair);
            let mut kernels: Vec<usize> = (0..self.sides.len())
                .filter(|kernel| pair <= self.sides[*kernel].pairs)
                .collect();
            if pair % 2 == 0 {
                kernels.reverse();
            }
            let together = if self.paced { kernels.len() } else { 1 };
            for kernels in kernels.chunks(together.max(1)) {
                let ended = self.pair(pair, kernels, &mut progress);
                let results = self.collection.results();
                results.write(&folder.join("results.json"))?;
                ended?;
                if self.stop.load(Ordering::SeqCst) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Boots these kernels at once and lets them measure in turn until all are at their end.
    fn pair(&mut self, pair: u32, kernels: &[usize], progress: &mut Progress) -> Result<()> {
        let mut players = Vec::new();
        for &kernel in kernels {
            let left = self.sides[kernel].names(&self.names);
            let boot = if left.is_empty() {
                None
            } else {
                Some(self.stage.boot(&self.sides[kernel], &left)?)
            };
            players.push(Player {
                kernel,
                pair,
                left,
                silent: 0,
                heard: false,
                row: String::new(),
                place: (0, 0, 0),
                boot,
            });
        }
        for player in &mut players {
            self.play(player, progress)?;
        }
        while let Some(at) = next(players.iter().map(Player::waits)) {
            let player = &mut players[at];
            if let Some(boot) = &mut player.boot {
                boot.go();
            }
            self.play(player, progress)?;
        }
        Ok(())
    }

    /// Hears a kernel until it waits for its next turn, or has come to its end. A guest that an experiment ends is booted
    /// anew for the ones behind it.
    fn play(&mut self, player: &mut Player, progress: &mut Progress) -> Result<()> {
        let (kernel, pair) = (player.kernel, player.pair);
        let title = self.sides[kernel].kernel.title();
        progress.boot(format!("pair {pair} of {}, {title}", self.pairs));
        while let Some(boot) = &mut player.boot {
            let course = match boot.next(&self.stop)? {
                Ok(line) => {
                    if player.hear(&line, &self.names, progress) {
                        return Ok(());
                    }
                    self.collection.hear(kernel, pair, line);
                    continue;
                }
                Err(course) => course,
            };
            player.boot = None;
            let why = match course {
                Course::Stopped => return Ok(()),
                Course::Whole if player.left.is_empty() => return Ok(()),
                Course::Whole => "the guest left it out".into(),
                Course::Broken(why) => why,
            };
            let failed = player.fail();
            progress.skip(failed.len());
            for name in failed {
                progress.say(&format!("{title}, {name}: {why}"));
                self.collection.fail(kernel, pair, Some(name), why.clone());
            }
            if !player.left.is_empty() {
                player.boot = Some(self.stage.boot(&self.sides[kernel], &player.left)?);
            }
        }
        Ok(())
    }
}

/// How far a kernel is: the experiment among all, how many of its rows have begun, and how many turns of the last one.
type Place = (usize, u32, u32);

/// A kernel of a pair.
struct Player {
    kernel: usize,
    pair: u32,
    /// The experiments that it has not done.
    left: Vec<String>,
    /// Boots in a row that said nothing.
    silent: u32,
    /// This boot has said something.
    heard: bool,
    /// The row that has its turns.
    row: String,
    place: Place,
    /// None at its end.
    boot: Option<Boot>,
}

impl Player {
    /// Where it waits, if it does.
    fn waits(&self) -> Option<Place> {
        self.boot.as_ref().map(|_| self.place)
    }

    /// Takes note of a line; true if the guest waits now.
    fn hear(&mut self, line: &Line, names: &[String], progress: &mut Progress) -> bool {
        self.heard = true;
        match line {
            Line::Row(Measured { row, .. })
            | Line::Missing { row, .. }
            | Line::Error { row, .. } => progress.now(row),
            Line::Begun(name) => {
                let at = names.iter().position(|it| it == name);
                self.place = (at.unwrap_or(names.len()), 0, 0);
                progress.now(name);
            }
            Line::Waiting(row) => {
                let (experiment, rows, turns) = self.place;
                self.place = if self.row == *row {
                    (experiment, rows, turns + 1)
                } else {
                    (experiment, rows + 1, 1)
                };
                self.row.clone_from(row);
                return true;
            }
            Line::Done(name) => {
                self.left.retain(|it| it != name);
                progress.done(name);
            }
            Line::End(_) => {}
        }
        false
    }

    /// The boot ended too early: what is given up for it. After the last experiment nothing is lost.
    fn fail(&mut self) -> Vec<String> {
        self.silent = if self.heard { 0 } else { self.silent + 1 };
        self.heard = false;
        let count = if self.silent == SILENT_BOOTS {
            self.left.len()
        } else {
            self.left.len().min(1)
        };
        self.left.drain(..count).collect()
    }
}

/// Who is next of those that wait: who has come least far, and of equals the first.
fn next(places: impl Iterator<Item = Option<Place>>) -> Option<usize> {
    let waiting = places
        .enumerate()
        .filter_map(|(at, place)| Some((place?, at)));
    waiting.min().map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_come_least_far_is_next() {
        let next = |places: &[Option<Place>]| next(places.iter().copied());
        assert_eq!(next(&[Some((0, 1, 1)), Some((0, 1, 1))]), Some(0));
        assert_eq!(next(&[Some((0, 2, 1)), Some((0, 1, 3))]), Some(1));
        assert_eq!(next(&[Some((0, 2, 2)), Some((0, 2, 1))]), Some(1));
        // A switch's kernel that has not all experiments waits until the others are there.
        let places = [Some((1, 9, 1)), Some((2, 1, 1)), Some((4, 1, 1))];
        assert_eq!(next(&places), Some(0));
        assert_eq!(next(&[None, Some((7, 3, 1))]), Some(1));
        assert_eq!(next(&[None, None]), None);
    }
}
