//! The send queue: what was sent and not yet acknowledged, with the scoreboard of SACK.

use alloc::{boxed::Box, collections::VecDeque};
use core::ops::Deref;

use abi::Result;
use fbuf::Aggregate;
use nucleus::try_box;

use crate::tcp::segment::{Flags, Seq};

/// What one segment carried. Its slices stay until they are acknowledged.
#[derive(Debug)]
pub(super) struct Piece {
    pub seq: Seq,
    pub data: Aggregate,
    /// SYN and FIN, each of which takes a number.
    pub flags: Flags,
    /// The time of the last transmission.
    pub sent_at: u64,
    /// It was sent more than once.
    pub is_again: bool,
    /// It has arrived behind a gap.
    pub is_sacked: bool,
    /// It is to be sent again.
    pub is_lost: bool,
}

impl Piece {
    pub fn len(&self) -> u32 {
        let ends = self.flags.has(Flags::SYN) as u32 + self.flags.has(Flags::FIN) as u32;
        self.data.len() as u32 + ends
    }

    pub fn end(&self) -> Seq {
        self.seq + self.len()
    }
}

/// What an acknowledgement has taken off.
#[derive(Default, Debug)]
pub(super) struct Acked {
    /// Bytes of data that were taken off the queue.
    pub bytes: usize,
    /// Numbers that arrived and were not known to have: in order, or by SACK.
    pub delivered: u32,
    /// The time at which the last of the pieces was sent, if all were sent once only.
    pub sampled: Option<u64>,
    /// The time at which one was sent again.
    pub again_at: Option<u64>,
    /// The peer has our FIN.
    pub fin: bool,
}

/// What was sent and not yet acknowledged. Its memory is taken for the first piece; an idle
/// connection [frees](Sent::trim) it.
#[derive(Default, Debug)]
pub(super) struct Sent(Option<Box<Queue>>);

/// A queue without pieces.
static EMPTY: Queue = Queue::new(Seq(0));

/// What has arrived latest of all that was sent: see `rack`.
#[derive(Debug)]
pub(super) struct Latest {
    /// The time of sending of the piece that was sent last of those that arrived, and the number
    /// behind it.
    pub sent_at: u64,
    pub end: Seq,
    /// Its round trip.
    pub round_trip: u64,
    /// The highest number that has arrived.
    pub highest: Seq,
}

/// Pieces in the order of their numbers.
#[derive(Debug)]
pub(super) struct Queue {
    pieces: VecDeque<Piece>,
    pub latest: Latest,
    /// Numbers on their way: neither arrived nor lost (RFC 6675's "pipe").
    flight: u32,
    /// Numbers that have arrived behind a gap.
    sacked: u32,
    /// Pieces that are to be sent again.
    lost: u32,
    /// Pieces that were sent again.
    again: u32,
    /// The sum of what the pieces' slices keep.
    frames: usize,
}

/// Moves the first `n` bytes of `data` to a chain of their own.
///
/// # Errors
/// `ENOMEM`; nothing has changed.
pub(super) fn split(data: &mut Aggregate, n: usize) -> Result<Aggregate> {
    let mut front = Aggregate::new();
    front.reserve(data.slice_count().min(n))?;
    let mut left = n;
    while let Some(slice) = data.take_slice(left) {
        left -= slice.len;
        front.append(slice)?;
    }
    Ok(front)
}

impl Sent {
    /// Makes room for a piece; `next` is its number.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn reserve(&mut self, next: Seq) -> Result<()> {
        let queue = match &mut self.0 {
            Some(queue) => queue,
            none => none.insert(try_box(Queue::new(next))?),
        };
        Ok(queue.pieces.try_reserve(1)?)
    }

    /// Adds a piece behind all others, for which there is room.
    #[inline]
    pub fn push(&mut self, piece: Piece) {
        if let Some(queue) = &mut self.0 {
            queue.push(piece);
        }
    }

    /// Frees the memory for pieces if there are none.
    pub fn trim(&mut self) {
        self.0.take_if(|queue| queue.is_empty());
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// Returns the queue to be changed; `None` while it has no memory.
    #[inline]
    pub fn queue(&mut self) -> Option<&mut Queue> {
        self.0.as_deref_mut()
    }

    /// As [`Queue::mark_lost`].
    pub fn mark_lost(&mut self, is_lost: impl FnMut(&Piece) -> bool) -> bool {
        self.queue().is_some_and(|queue| queue.mark_lost(is_lost))
    }

    /// As [`Queue::resend_last`].
    pub fn resend_last(&mut self, most: usize, now: u64) -> Option<&Piece> {
        self.queue()?.resend_last(most, now)
    }
}

impl Deref for Sent {
    type Target = Queue;

    #[inline]
    fn deref(&self) -> &Queue {
        self.0.as_deref().unwrap_or(&EMPTY)
    }
}

impl Queue {
    const fn new(next: Seq) -> Queue {
        Queue {
            pieces: VecDeque::new(),
            latest: Latest {
                sent_at: 0,
                end: next,
                round_trip: 0,
                highest: next,
            },
            flight: 0,
            sacked: 0,
            lost: 0,
            again: 0,
            frames: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub fn flight(&self) -> u32 {
        self.flight
    }

    /// Returns how many pieces have arrived behind a gap, are to be sent again, were sent again.
    pub fn scores(&self) -> (u32, u32, u32) {
        let sacked = match self.sacked {
            0 => 0,
            _ => self.pieces.iter().filter(|piece| piece.is_sacked).count(),
        };
        (sacked as u32, self.lost, self.again)
    }

    pub fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// Tells whether the order of arrival says nothing about losses: nothing has arrived behind a
    /// gap or was sent again.
    pub fn is_plain(&self) -> bool {
        self.sacked == 0 && self.again == 0
    }

    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter()
    }

    /// Returns how many frames the slices keep.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// See [`Sent::push`].
    #[inline]
    fn push(&mut self, piece: Piece) {
        self.flight += piece.len();
        self.frames += piece.data.frame_count();
        self.pieces.push_back(piece);
    }

    /// Takes off what `ack` covers. `arrived` is told of each piece that was not known to have
    /// arrived: the time of sending, the number behind it, and whether it was sent again.
    pub fn acknowledge(
        &mut self,
        ack: Seq,
        acked: &mut Acked,
        mut arrived: impl FnMut(&mut Latest, u64, Seq, bool),
    ) {
        let mut has_again = false;
        while let Some(first) = self.pieces.front_mut()
            && first.seq < ack
        {
            if first.is_again {
                has_again = true;
                acked.again_at = acked.again_at.max(Some(first.sent_at));
            }
            let covered = ack.since(first.seq).min(first.len());
            if first.is_sacked {
                self.sacked -= covered;
            } else {
                if !first.is_lost {
                    self.flight -= covered;
                }
                acked.delivered += covered;
                let end = first.seq + covered;
                arrived(&mut self.latest, first.sent_at, end, first.is_again);
                // Pieces behind one that was sent again may have arrived long ago.
                match has_again {
                    true => acked.sampled = None,
                    false => acked.sampled = acked.sampled.max(Some(first.sent_at)),
                }
            }
            if covered < first.len() {
                // A SYN is a piece of its own; a FIN is the last number.
                let bytes = (covered as usize).min(first.data.len());
                self.frames -= first.data.frame_count();
                first.data.clip_front(bytes);
                self.frames += first.data.frame_count();
                first.seq = ack;
                acked.bytes += bytes;
                return;
            }
            acked.bytes += first.data.len();
            acked.fin |= first.flags.has(Flags::FIN);
            self.lost -= u32::from(first.is_lost);
            self.again -= u32::from(first.is_again);
            self.frames -= first.data.frame_count();
            self.pieces.pop_front();
        }
    }

    /// Notes that the numbers from `left` to `right` have arrived. Pieces are cut where the range
    /// ends inside, between segments of `segment` bytes: what a peer says of parts of segments does
    /// not count, so it can make no more pieces than there are segments.
    pub fn sack(
        &mut self,
        (left, right): (Seq, Seq),
        segment: u32,
        acked: &mut Acked,
        mut arrived: impl FnMut(&mut Latest, u64, Seq, bool),
    ) {
        let mut at = self.pieces.partition_point(|piece| piece.end() <= left);
        while let Some(piece) = self.pieces.get(at)
            && piece.seq < right
        {
            let (seq, end, is_sacked) = (piece.seq, piece.end(), piece.is_sacked);
            if !is_sacked {
                let left = match seq < left {
                    true => seq + left.since(seq).next_multiple_of(segment),
                    false => seq,
                };
                let right = match end > right {
                    true => seq + right.since(seq) / segment * segment,
                    false => end,
                };
                if left >= right {
                    at += 1;
                    continue;
                }
                // Without memory for a cut, the piece counts as one that has not arrived.
                if seq < left || end > right && self.cut(at, right).is_err() {
                    let _ = seq < left && self.cut(at, left).is_ok();
                    at += 1;
                    continue;
                }
                let piece = &mut self.pieces[at];
                piece.is_sacked = true;
                self.sacked += piece.len();
                if piece.is_lost {
                    piece.is_lost = false;
                    self.lost -= 1;
                } else {
                    self.flight -= piece.len();
                }
                acked.delivered += piece.len();
                // No measure of the round trip: the report of an earlier arrival may be lost.
                let end = piece.end();
                arrived(&mut self.latest, piece.sent_at, end, piece.is_again);
            }
            at += 1;
        }
    }

    /// Cuts piece `at` in two before the number `seq`, which is inside its data.
    fn cut(&mut self, at: usize, seq: Seq) -> Result<()> {
        self.pieces.try_reserve(1)?;
        let piece = &mut self.pieces[at];
        let n = seq.since(piece.seq) as usize;
        if n == 0 || n >= piece.len() as usize {
            return Err(abi::Errno::EINVAL);
        }
        let before = piece.data.frame_count();
        let front = Piece {
            seq: piece.seq,
            data: split(&mut piece.data, n)?,
            flags: Flags::default(),
            ..*piece
        };
        piece.seq = seq;
        self.frames += front.data.frame_count() + piece.data.frame_count() - before;
        self.lost += u32::from(front.is_lost);
        self.again += u32::from(front.is_again);
        self.pieces.insert(at, front);
        Ok(())
    }

    /// Marks pieces as lost, for which `is_lost` returns true; those that have arrived or are lost
    /// already are not asked. Returns whether there were any.
    pub fn mark_lost(&mut self, mut is_lost: impl FnMut(&Piece) -> bool) -> bool {
        let mut any = false;
        for piece in &mut self.pieces {
            if !piece.is_sacked && !piece.is_lost && is_lost(piece) {
                piece.is_lost = true;
                self.flight -= piece.len();
                self.lost += 1;
                any = true;
            }
        }
        any
    }

    /// Marks the first piece as lost. Returns whether that is news.
    pub fn lose_first(&mut self) -> bool {
        let Some(first) = self.pieces.front() else {
            return false;
        };
        let seq = first.seq;
        self.mark_lost(|piece| piece.seq == seq)
    }

    /// Takes back that pieces have arrived behind gaps: the receiver may have dropped them.
    pub fn forget_sacks(&mut self) {
        for piece in &mut self.pieces {
            if piece.is_sacked {
                piece.is_sacked = false;
                self.flight += piece.len();
            }
        }
        self.sacked = 0;
    }

    /// Returns the first lost piece that begins before `edge`, cut to `most` bytes, and counts it
    /// as sent at `now`.
    pub fn resend(&mut self, edge: Seq, most: usize, now: u64) -> Option<&Piece> {
        if self.lost == 0 {
            return None;
        }
        let at = self.pieces.iter().position(|piece| piece.is_lost)?;
        if self.pieces[at].seq >= edge {
            return None;
        }
        self.resend_at(at, most, now)
    }

    /// Returns the last piece, or its last `most` bytes, and counts it as sent at `now`.
    pub fn resend_last(&mut self, most: usize, now: u64) -> Option<&Piece> {
        let at = self.pieces.len().checked_sub(1)?;
        let piece = &self.pieces[at];
        if piece.data.len() > most {
            let seq = piece.seq + (piece.data.len() - most) as u32;
            self.cut(at, seq).ok()?;
        }
        let at = self.pieces.len() - 1;
        self.resend_at(at, most, now)
    }

    fn resend_at(&mut self, at: usize, most: usize, now: u64) -> Option<&Piece> {
        let piece = &self.pieces[at];
        if piece.data.len() > most {
            let seq = piece.seq + most as u32;
            self.cut(at, seq).ok()?;
        }
        let piece = &mut self.pieces[at];
        if piece.is_lost {
            piece.is_lost = false;
            self.lost -= 1;
            self.flight += piece.len();
        }
        if !piece.is_again {
            piece.is_again = true;
            self.again += 1;
        }
        piece.sent_at = now;
        Some(piece)
    }
}
