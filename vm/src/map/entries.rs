//! The entries of a map, in order of address: a table of rows.
//!
//! ```text
//!   first ──> (start, entry) (start, entry) (start, entry) …        a row: 64 entries at most
//!   first ──> (start, entry) …
//! ```
//! A row stores addresses contiguously and boxes the entries, so a lookup is a binary search in the
//! rows' first addresses and one in a row, and touches nothing else; most programs have one row.
//! Entries do not move in memory. An insertion or removal moves at most a row's addresses and, at
//! most once in 32 times, one or two words of each row: the default limit of 65,530 entries makes
//! 2,000 rows.

use alloc::{boxed::Box, collections::TryReserveError, vec::Vec};
use nucleus::{PAGE_SIZE, VirtAddr};

use super::entry::MapEntry;

/// Entries of a row: 1 KiB of addresses.
const ROW: usize = 64;
/// Rows that one change of a map adds at most, besides those of entries that it passes on: one for
/// each entry.
const MORE_ROWS: usize = 4;
/// Initial capacity of a row: about the number of entries of a new program.
const LEAST: usize = 16;

struct Place {
    /// The entry's first address.
    start: usize,
    entry: Box<MapEntry>,
}

/// Neighbouring entries, at least one.
struct Row {
    /// The first entry's first address.
    first: usize,
    places: Vec<Place>,
}

/// Entries in order of address that do not overlap.
#[derive(Default)]
pub(crate) struct Entries {
    rows: Vec<Row>,
    count: usize,
}

/// The position of an entry, valid until one is inserted or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    row: usize,
    place: usize,
}

/// The position of the first entry, if there is one.
pub(crate) const FIRST: Position = Position { row: 0, place: 0 };

impl Row {
    fn new(places: Vec<Place>) -> Row {
        Row {
            first: places[0].start,
            places,
        }
    }

    #[allow(clippy::disallowed_methods, reason = "256 bytes")]
    fn with_one(place: Place) -> Row {
        let mut places = Vec::with_capacity(LEAST);
        let first = place.start;
        places.push(place);
        Row { first, places }
    }
}

impl Entries {
    /// Returns an empty table.
    pub const fn new() -> Entries {
        Entries {
            rows: Vec::new(),
            count: 0,
        }
    }

    /// The number of entries.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// About how many pages of the kernel's memory they take.
    pub fn pages(&self) -> usize {
        self.count * (size_of::<MapEntry>() + size_of::<Place>()) / PAGE_SIZE
    }

    /// The last entry that starts at `va` or below.
    #[inline]
    pub fn floor(&self, va: VirtAddr) -> Option<Position> {
        let row = match self.rows.len() {
            1 => 0,
            _ => {
                let rows = self.rows.partition_point(|row| row.first <= va.0);
                rows.checked_sub(1)?
            }
        };
        let places = &self.rows[row].places;
        let place = places.partition_point(|place| place.start <= va.0);
        Some(Position {
            row,
            place: place.checked_sub(1)?,
        })
    }

    /// The first entry that ends above `va`, or the end.
    #[inline]
    pub fn ending_above(&self, va: VirtAddr) -> Position {
        match self.floor(va) {
            None => FIRST,
            Some(at) if self.get(at).is_some_and(|entry| va < entry.range.end) => at,
            Some(at) => self.after(at),
        }
    }

    /// The position after an entry, which is the next entry's or the end.
    #[inline]
    pub fn after(&self, at: Position) -> Position {
        let place = at.place + 1;
        match self.rows.get(at.row) {
            Some(row) if place < row.places.len() => Position { place, ..at },
            _ => Position {
                row: at.row + 1,
                place: 0,
            },
        }
    }

    /// The position before an entry.
    #[inline]
    pub fn before(&self, at: Position) -> Option<Position> {
        if let Some(place) = at.place.checked_sub(1) {
            return Some(Position { place, ..at });
        }
        let row = at.row.checked_sub(1)?;
        Some(Position {
            row,
            place: self.rows[row].places.len() - 1,
        })
    }

    /// The entry at a position; `None` at the end.
    #[inline]
    pub fn get(&self, at: Position) -> Option<&MapEntry> {
        let place = self.rows.get(at.row)?.places.get(at.place)?;
        Some(&place.entry)
    }

    /// As [`get`](Entries::get), mutable; a caller that changes the entry's start calls
    /// [`moved`](Entries::moved).
    #[inline]
    pub fn get_mut(&mut self, at: Position) -> Option<&mut MapEntry> {
        let place = self.rows.get_mut(at.row)?.places.get_mut(at.place)?;
        Some(&mut place.entry)
    }

    /// Notes that the entry has another start, still between its neighbours.
    pub fn moved(&mut self, at: Position) {
        let row = &mut self.rows[at.row];
        let place = &mut row.places[at.place];
        place.start = place.entry.range.start.0;
        row.first = row.places[0].start;
    }

    /// The entries from `at` on, in order.
    #[inline]
    pub fn from(&self, at: Position) -> impl Iterator<Item = &MapEntry> {
        let mut rows = self.rows.get(at.row..).unwrap_or_default().iter();
        let first = rows.next().map(|row| &row.places[..]).unwrap_or_default();
        let mut row = first.get(at.place..).unwrap_or_default().iter();
        core::iter::from_fn(move || {
            loop {
                match row.next() {
                    Some(place) => return Some(&*place.entry),
                    None => row = rows.next()?.places.iter(),
                }
            }
        })
    }

    /// As [`from`](Entries::from), mutable except for their starts.
    pub fn rest_mut(&mut self, at: Position) -> impl Iterator<Item = &mut MapEntry> {
        let rows = self.rows.iter_mut().skip(at.row);
        let entries = rows.flat_map(|row| row.places.iter_mut());
        entries.skip(at.place).map(|place| &mut *place.entry)
    }

    /// Makes room for the few entries of one change, and for `more` neighbouring ones.
    ///
    /// # Errors
    /// No memory.
    #[inline]
    pub fn reserve(&mut self, more: usize) -> Result<(), TryReserveError> {
        // A full row gives up half of its entries.
        self.rows.try_reserve(MORE_ROWS + more / (ROW / 2))
    }

    /// Inserts an entry where there is none, and returns its position. There is
    /// [room](Entries::reserve) for it.
    pub fn insert(&mut self, entry: impl Into<Box<MapEntry>>) -> Position {
        let entry = entry.into();
        let place = Place {
            start: entry.range.start.0,
            entry,
        };
        self.count += 1;
        let mut at = match self.floor(VirtAddr(place.start)) {
            Some(before) => Position {
                place: before.place + 1,
                ..before
            },
            None => FIRST,
        };
        match self.rows.get(at.row).map(|row| row.places.len()) {
            None => {
                self.rows.push(Row::with_one(place));
                return FIRST;
            }
            // Appending fills rows completely.
            Some(ROW) if at.row + 1 == self.rows.len() && at.place == ROW => {
                self.rows.push(Row::with_one(place));
                return self.after(at);
            }
            Some(ROW) => {
                #[allow(clippy::disallowed_methods, reason = "1 KiB")]
                let mut half = Vec::with_capacity(ROW);
                half.extend(self.rows[at.row].places.drain(ROW / 2..));
                self.rows.insert(at.row + 1, Row::new(half));
                if at.place > ROW / 2 {
                    at.row += 1;
                    at.place -= ROW / 2;
                }
            }
            Some(_) => {}
        }
        let row = &mut self.rows[at.row];
        row.places.insert(at.place, place);
        row.first = row.places[0].start;
        at
    }

    /// Removes an entry.
    pub fn remove(&mut self, at: Position) -> Option<Box<MapEntry>> {
        let row = self.rows.get_mut(at.row)?;
        if at.place >= row.places.len() {
            return None;
        }
        let place = row.places.remove(at.place);
        self.count -= 1;
        match row.places.first() {
            Some(first) => row.first = first.start,
            None => drop(self.rows.remove(at.row)),
        }
        if self.rows.len() > 1 {
            self.join_rows(at.row);
            self.join_rows(at.row.saturating_sub(1));
        }
        Some(place.entry)
    }

    /// Joins this row and the next if together they fill at most half a row.
    fn join_rows(&mut self, at: usize) {
        if let Some([row, next]) = self.rows.get_mut(at..at + 2)
            && row.places.len() + next.places.len() <= ROW / 2
        {
            row.places.append(&mut next.places);
            self.rows.remove(at + 1);
        }
    }

    /// Takes all entries.
    pub fn into_all(self) -> impl Iterator<Item = Box<MapEntry>> {
        let places = self.rows.into_iter().flat_map(|row| row.places);
        places.map(|place| place.entry)
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::{Lock, MapRequest};
    use super::*;
    use nucleus::{Prot, VirtRange};
    use std::collections::BTreeMap;

    fn entry(start: usize, pages: usize) -> MapEntry {
        let range = VirtRange::new(VirtAddr(start), VirtAddr(start + pages * PAGE_SIZE));
        let request = MapRequest::zero(range.len(), Prot::READ);
        MapEntry::new(range, &request, Lock::None, None)
    }

    /// Checks the invariants, and the content against the model: ends by starts.
    fn check(table: &Entries, model: &BTreeMap<usize, usize>) {
        let there: Vec<(usize, usize)> = table
            .from(FIRST)
            .map(|entry| (entry.range.start.0, entry.range.end.0))
            .collect();
        let expected: Vec<(usize, usize)> = model.iter().map(|(&a, &b)| (a, b)).collect();
        assert_eq!(there, expected);
        assert_eq!(table.count(), model.len());
        for row in &table.rows {
            assert_eq!(row.first, row.places[0].start);
            assert!(row.places.len() <= ROW);
            assert!(
                row.places
                    .iter()
                    .all(|place| place.start == place.entry.range.start.0)
            );
        }
        for two in table.rows.windows(2) {
            assert!(two[0].places.len() + two[1].places.len() > ROW / 2);
        }
    }

    #[test]
    fn it_is_a_sorted_map() {
        for seed in 1..=40u64 {
            let mut state = seed;
            let mut random = |below: usize| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (state >> 33) as usize % below
            };
            let mut table = Entries::new();
            let mut model = BTreeMap::new();
            // Slots of two pages; an entry takes the first or both.
            let slots = [20, 300, 2000][seed as usize % 3];
            for step in 0..3000 {
                let start = (1 + random(slots)) * 2 * PAGE_SIZE;
                let va = VirtAddr(start + random(2) * PAGE_SIZE);
                let growing = step % 1000 < 600;
                let floor = model.range(..=va.0).next_back().map(|(&a, &b)| (a, b));
                let found = table.floor(va).and_then(|at| table.get(at));
                assert_eq!(
                    found.map(|entry| (entry.range.start.0, entry.range.end.0)),
                    floor
                );
                let above = table.get(table.ending_above(va));
                let ends_above = |(a, b): (&usize, &usize)| (*b > va.0).then_some(*a);
                assert_eq!(
                    above.map(|entry| entry.range.start.0),
                    model.iter().find_map(ends_above)
                );
                match model.contains_key(&start) {
                    false if growing || random(3) == 0 => {
                        let entry = entry(start, 1 + random(2));
                        model.insert(start, entry.range.end.0);
                        let at = table.insert(entry);
                        assert_eq!(table.get(at).map(|it| it.range.start.0), Some(start));
                        let before = table.before(at);
                        assert!(before.is_none_or(|before| table.after(before) == at));
                    }
                    true if !growing || random(3) == 0 => {
                        let at = table.floor(VirtAddr(start)).expect("it is there");
                        let gone = table.remove(at).expect("it is there");
                        assert_eq!(Some(gone.range.end.0), model.remove(&start));
                    }
                    _ => {}
                }
                if step % 50 == 0 {
                    check(&table, &model);
                    let at = table.ending_above(va);
                    let some: Vec<usize> = table.rest_mut(at).map(|it| it.range.start.0).collect();
                    let all = model.iter().filter(|(_, end)| **end > va.0);
                    assert!(some.into_iter().eq(all.map(|(start, _)| *start)));
                }
            }
            check(&table, &model);
            assert_eq!(table.into_all().count(), model.len());
        }
    }
}
