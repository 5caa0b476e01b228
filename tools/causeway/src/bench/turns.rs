//! The turns of the kernels of a pair: all run at once, and only one of them measures at any time.
//!
//! The speed of a busy host changes from second to second. So each guest announces its next row and
//! waits until the others have come as far, and the two sides of a ratio are measured within a
//! second. The order of the kernels changes from pair to pair, so that a host that grows slower or
//! faster favours none.
//!
//! A shared host is also disturbed for tenths of a second and for seconds. So the guests pass
//! through all experiments repeatedly, a turn of each row in each pass, and skip rows that have had
//! [enough](Tally::is_enough) turns while the host was [calm](super::calm). The value of a row is
//! that of its best turn, since a disturbance only ever makes one slower.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::calm::Host;
use super::collect::Collection;
use super::lines::{Line, Measured};
use super::machine::{Boot, Course, Side, Stage};
use super::progress::Progress;

/// After so many boots of a kernel without a word its other experiments are given up.
const SILENT_BOOTS: u32 = 2;

/// A row has had enough after so many calm turns.
const CALM_TURNS: u32 = 2;

/// Passes through the experiments at most.
const MOST_PASSES: u32 = 8;

/// A slow row, whose turns have taken this long, has had enough with one calm turn.
const LONG: Duration = Duration::from_millis(300);

/// No row gets another turn after this time, however disturbed its turns were.
const TOO_LONG: Duration = Duration::from_millis(900);

/// The time for all turns after each row's first in a pair: a bench on a host that is never calm
/// comes to its end as well.
const PATIENCE: Duration = Duration::from_secs(20);

/// The guest's word for another pass.
const AGAIN: &str = "again";

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
        let mut host = Host::new();
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
                let ended = self.pair(pair, kernels, &mut host, &mut progress);
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
    fn pair(
        &mut self,
        pair: u32,
        kernels: &[usize],
        host: &mut Host,
        progress: &mut Progress,
    ) -> Result<()> {
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
                current: None,
                waits_for: String::new(),
                place: Place::default(),
                tallies: BTreeMap::new(),
                boot,
            });
        }
        for player in &mut players {
            self.play(player, progress)?;
        }
        let mut patience = PATIENCE;
        while let Some(at) = next(players.iter().map(Player::waits)) {
            let player = &mut players[at];
            let Some(boot) = &mut player.boot else {
                continue;
            };
            let row = player.waits_for.clone();
            let go = wants(
                &row,
                player.place.pass,
                &player.tallies,
                !patience.is_zero(),
            );
            if !go || !row.contains('/') {
                boot.answer(go);
                self.play(player, progress)?;
                continue;
            }
            let calm = host.is_calm();
            let since = Instant::now();
            boot.answer(true);
            self.play(player, progress)?;
            let took = since.elapsed();
            let calm = calm && host.is_calm();
            let tally = player.tallies.entry(row).or_default();
            if tally.turns > 0 {
                patience = patience.saturating_sub(took);
            }
            tally.add(calm, took);
            self.collection.turn(calm);
        }
        Ok(())
    }

    /// Hears a kernel until it waits for its next turn, or has come to its end. A guest that an
    /// experiment ends is booted anew for the ones behind it.
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

/// How far a kernel is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
struct Place {
    /// The pass through all experiments, from 0.
    pass: u32,
    /// The experiment among all.
    experiment: usize,
    /// How many of its rows have been reached.
    rows: u32,
}

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
    /// The experiment that it does.
    current: Option<String>,
    /// The step that it waits for: an experiment, a row, or another pass.
    waits_for: String,
    place: Place,
    /// The rows that had turns.
    tallies: BTreeMap<String, Tally>,
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
                self.place.experiment = at.unwrap_or(names.len());
                self.place.rows = 0;
                self.current = Some(name.clone());
                progress.now(name);
            }
            Line::Waiting(next) => {
                if next == AGAIN {
                    self.place = Place {
                        pass: self.place.pass + 1,
                        ..Place::default()
                    };
                } else if next.contains('/') {
                    self.place.rows += 1;
                }
                self.waits_for.clone_from(next);
                return true;
            }
            Line::Done(name) => {
                self.current = None;
                if self.left.contains(name) {
                    self.left.retain(|it| it != name);
                    progress.done(name);
                }
            }
            Line::End(_) => {}
        }
        false
    }

    /// Returns the experiments that are given up because the boot ended too early. After the last
    /// experiment none is.
    fn fail(&mut self) -> Vec<String> {
        self.silent = if self.heard { 0 } else { self.silent + 1 };
        self.heard = false;
        let current = self.current.take();
        if self.left.is_empty() {
            // It had been done once, in an earlier pass.
            return current.into_iter().collect();
        }
        let count = if self.silent == SILENT_BOOTS {
            self.left.len()
        } else {
            1
        };
        self.left.drain(..count).collect()
    }
}

/// Decides whether a guest runs the step that it waits for: a row that has not had enough turns, an
/// experiment with such rows, or another pass if there are any. Without patience one turn is
/// enough.
fn wants(next: &str, pass: u32, tallies: &BTreeMap<String, Tally>, patient: bool) -> bool {
    let more = |row: &&Tally| !row.is_enough(patient);
    if next == AGAIN {
        return pass < MOST_PASSES && tallies.values().any(|it| more(&it));
    }
    if next.contains('/') {
        return tallies.get(next).is_none_or(|it| more(&it));
    }
    let rows = tallies.range(format!("{next}/")..format!("{next}0"));
    pass == 0 || rows.map(|(_, it)| it).any(|it| more(&it))
}

/// The turns that a kernel had for a row in a boot.
#[derive(Default)]
struct Tally {
    turns: u32,
    calm: u32,
    gone: Duration,
}

impl Tally {
    fn add(&mut self, calm: bool, took: Duration) {
        self.turns += 1;
        self.calm += u32::from(calm);
        self.gone += took;
    }

    /// Whether further turns would add nothing or, without `patient`, take too long.
    fn is_enough(&self, patient: bool) -> bool {
        self.calm >= CALM_TURNS
            || (self.turns > 0 && !patient)
            || (self.gone >= LONG && self.calm > 0)
            || self.gone >= TOO_LONG
    }
}

/// Returns the waiting kernel that has come least far, and of equals the first.
fn next(places: impl Iterator<Item = Option<Place>>) -> Option<usize> {
    let waiting = places
        .enumerate()
        .filter_map(|(at, place)| Some((place?, at)));
    waiting.min().map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(40);

    fn tally(turns: &[bool], took: Duration) -> Tally {
        let mut tally = Tally::default();
        for (at, calm) in turns.iter().enumerate() {
            assert!(!tally.is_enough(true), "after {at} of {turns:?}");
            tally.add(*calm, took);
        }
        tally
    }

    #[test]
    fn who_has_come_least_far_is_next() {
        let place = |pass, experiment, rows| {
            Some(Place {
                pass,
                experiment,
                rows,
            })
        };
        let next = |places: &[Option<Place>]| next(places.iter().copied());
        assert_eq!(next(&[place(0, 1, 1), place(0, 1, 1)]), Some(0));
        assert_eq!(next(&[place(0, 2, 1), place(0, 1, 3)]), Some(1));
        assert_eq!(next(&[place(1, 0, 0), place(0, 2, 1)]), Some(1));
        // A switch's kernel that has not all experiments waits until the others are there.
        let places = [place(0, 1, 9), place(0, 2, 1), place(0, 4, 1)];
        assert_eq!(next(&places), Some(0));
        assert_eq!(next(&[None, place(0, 7, 3)]), Some(1));
        assert_eq!(next(&[None, None]), None);
    }

    #[test]
    fn a_row_has_turns_until_enough_were_calm() {
        let enough = |turns: &[bool], took| tally(turns, took).is_enough(true);
        assert!(!enough(&[], SHORT) && !enough(&[true, false], SHORT));
        assert!(enough(&[true, true], SHORT) && enough(&[false, true, false, true], SHORT));
        assert!(!enough(&[false; 6], SHORT));
        assert!(enough(&[true], LONG) && enough(&[false, true], LONG / 2));
        assert!(!enough(&[false], LONG) && enough(&[false], TOO_LONG));
        // Without patience there is one turn.
        assert!(!tally(&[], SHORT).is_enough(false) && tally(&[false], SHORT).is_enough(false));
    }

    #[test]
    fn passes_go_on_while_a_row_wants_turns() {
        let mut tallies = BTreeMap::new();
        assert!(wants("fork", 0, &tallies, true) && wants("fork/0MiB", 0, &tallies, true));
        tallies.insert("fork/0MiB".into(), tally(&[true, true], SHORT));
        tallies.insert("pipe/latency".into(), tally(&[true, false], SHORT));
        let wants = |next, pass, patient| wants(next, pass, &tallies, patient);
        assert!(!wants("fork", 2, true) && !wants("fork/0MiB", 2, true));
        assert!(wants("pipe", 2, true) && wants("pipe/latency", 2, true));
        assert!(wants("pipe/bandwidth", 2, true));
        assert!(!wants("pip", 2, true) && !wants("pipe", 2, false));
        assert!(wants(AGAIN, 1, true) && wants(AGAIN, 2, true));
        assert!(!wants(AGAIN, 1, false) && !wants(AGAIN, MOST_PASSES, true));
        let done = BTreeMap::from([("fork/0MiB".to_owned(), tally(&[true, true], SHORT))]);
        assert!(!super::wants(AGAIN, 2, &done, true));
    }

    #[test]
    fn a_boot_that_ends_early_gives_up_what_it_did() {
        let mut player = Player {
            kernel: 0,
            pair: 1,
            left: vec!["fork".into(), "pipe".into(), "file".into()],
            silent: 0,
            heard: true,
            current: Some("fork".into()),
            waits_for: String::new(),
            place: Place::default(),
            tallies: BTreeMap::new(),
            boot: None,
        };
        assert_eq!(player.fail(), ["fork"]);
        // One silent boot gives up one experiment, the next one all.
        assert_eq!(player.fail(), ["pipe"]);
        player.heard = false;
        assert_eq!(player.fail(), ["file"]);
        assert!(player.fail().is_empty());
        // In a later pass it had been done.
        player.current = Some("fork".into());
        assert_eq!(player.fail(), ["fork"]);
    }
}
