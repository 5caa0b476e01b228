//! Fbufs against plain bytes: random operations of several domains, with deaths at random points.
//! Workers on different CPUs make the accesses, and their TLBs keep any entry that they may keep.
//! Each access must give what the model says; in the end every frame must be free again, and no
//! run or path must be left.

mod addresses;
mod attacks;
mod domains;
mod kernel;
mod memory;
mod messages;
mod model;
mod process;
mod races;
#[path = "../../../vm/tests/support/mod.rs"]
mod support;
mod uncached;

use abi::Errno;
use fbuf::region::{Domain, statuses};
use model::{Model, Who};
use nucleus::{
    frame::{self, Owned},
    sim,
    sync::OnceArc,
};
use support::Numbers;
use vm::{Layout, Limits, Map, Randomness, swap};

struct Run {
    model: Model,
    numbers: Numbers,
    cpus: usize,
    /// Pages that were lent, with their bytes, which stay.
    loans: Vec<(Owned, Vec<u8>)>,
    /// The kernel's memory seems short now and then.
    shortages: bool,
}

impl Run {
    fn new(seed: u64, cpus: usize, shortages: bool) -> Run {
        Run {
            model: Model::default(),
            numbers: Numbers::new(seed),
            cpus,
            loans: Vec::new(),
            shortages,
        }
    }

    fn who(&mut self) -> Option<Who> {
        let all: Vec<Who> = self.model.spaces.keys().copied().collect();
        (!all.is_empty()).then(|| *self.numbers.pick(&all))
    }

    fn path(&mut self) -> Option<usize> {
        let paths = self.model.paths.iter().enumerate();
        let open: Vec<usize> = paths
            .filter(|(_, it)| !it.is_closed)
            .map(|it| it.0)
            .collect();
        (!open.is_empty()).then(|| *self.numbers.pick(&open))
    }

    /// A page that is in use, or next to one.
    fn page(&mut self) -> Option<u64> {
        let pages: Vec<u64> = self.model.pages.keys().copied().collect();
        (!pages.is_empty()).then(|| *self.numbers.pick(&pages))
    }

    fn step(&mut self) -> Option<()> {
        match self.numbers.below(100) {
            0..3 if self.model.spaces.len() < 5 => self.enter(),
            3..6 if self.model.paths.iter().filter(|it| !it.is_closed).count() < 5 => {
                self.make_path()?;
            }
            6..14 => self.attach()?,
            14..20 => self.grow()?,
            20..22 => self.shrink()?,
            22..36 => self.write()?,
            36..52 => self.read()?,
            52..66 => self.send()?,
            66..76 => self.receive()?,
            76..84 => self.free()?,
            84..87 => self.secure()?,
            87..90 => self.notices()?,
            90..92 => self.leave()?,
            92 => self.die()?,
            93 => self.close()?,
            94 => self.lend()?,
            95 | 96 => self.idle()?,
            97 => self.page_out()?,
            98 => match self.numbers.below(3) {
                0 => self.lock()?,
                1 => self.remove()?,
                _ => self.fork()?,
            },
            _ => self.nonsense()?,
        }
        Some(())
    }

    /// Lets the kernel's memory seem short at some time within the next call.
    fn be_short(&mut self) {
        if self.shortages && self.numbers.chance(40) {
            let when = self.numbers.below(5) as u64;
            match self.numbers.chance(50) {
                true => frame::seem_scarce_once(when),
                false => frame::seem_scarce_after(Some(when)),
            }
        }
    }

    /// Ends [`be_short`](Run::be_short); whether this result is due to it.
    fn is_short<T>(&self, result: &abi::Result<T>) -> bool {
        frame::seem_scarce_after(None);
        let failed = matches!(result, Err(Errno::ENOMEM));
        assert!(self.shortages || !failed);
        failed
    }

    /// Checks each used page in each domain from each CPU, and the figures.
    fn check_all(&self) {
        for (who, space) in &self.model.spaces {
            for page in self.model.pages.keys() {
                for worker in 0..space.workers.len() {
                    self.check(*who, *page, worker);
                }
            }
        }
        self.check_loans();
        let statuses = statuses().expect("memory");
        let sum =
            |of: fn(&fbuf::region::PathStatus) -> usize| statuses.iter().map(of).sum::<usize>();
        assert_eq!(sum(|it| it.messages), self.model.messages.len());
        let secured = self.model.pages.values().filter(|it| it.is_secured);
        assert_eq!(sum(|it| it.secured), secured.count());
        let noted = self.model.pages.values().filter(|it| it.is_noticed);
        assert_eq!(sum(|it| it.notices), noted.count());
    }

    fn end(mut self) {
        self.loans.clear();
        for (_, space) in core::mem::take(&mut self.model.spaces) {
            space.end(self.numbers.chance(50));
        }
        drop(self.model.paths);
        let left = statuses().expect("memory");
        assert!(left.is_empty(), "{left:?}");
    }
}

fn against_model(seed: u64, cpus: usize, steps: usize, shortages: bool) {
    let store = support::swap::Store::new(seed, 200);
    let device = swap::add(store, 0, &|| false).expect("a swap device");
    let mut run = Run::new(seed, cpus, shortages);
    for _ in 0..3 {
        run.enter();
    }
    for step in 0..steps {
        run.step();
        if step % 100 == 99 {
            run.check_all();
        }
    }
    run.check_all();
    run.end();
    support::swap::remove(device);
}

#[test]
fn domains_against_the_model() {
    for cpus in [1, 2, 4] {
        support::check("fbufs", 0..20, support::on_cpus(cpus), move || {
            against_model(sim::random_u64(), cpus, 600, false);
        });
    }
}

/// The kernel's memory is short at random points of calls: they fail and change nothing, or what
/// was readable is not any more.
#[test]
fn domains_without_memory() {
    support::check("fbufs without memory", 0..40, support::on_cpus(2), || {
        against_model(sim::random_u64(), 2, 500, true);
    });
}

/// Several domains at once, each on a CPU of its own, with deaths: no oracle of bytes, but no stale
/// translation is used, each receiver's message has the sender's bytes, and all comes back.
#[test]
fn domains_at_once() {
    support::check("fbufs at once", 0..60, support::on_cpus(4), || {
        races::run(sim::random_u64());
    });
}

#[test]
fn a_message_is_mapped_as_a_whole() {
    support::once("half mapped", attacks::half_mapped);
}

#[test]
fn secured_messages_do_not_change() {
    support::check("secured meanwhile", 0..4, support::on_cpus(2), || {
        attacks::secured_meanwhile(0);
        attacks::secured_meanwhile(1);
    });
}

#[test]
fn what_was_not_sent_can_be_written() {
    support::once("forwarded", attacks::forwarded_unsent);
}

#[test]
fn messages_leave_maps_alone() {
    support::once("maps stay", || uncached::maps_stay(process::UNCACHED));
    support::once("maps stay", || {
        uncached::maps_stay(process::UNCACHED | process::SECURED);
    });
}

#[test]
fn what_was_read_before_is_shown() {
    support::once("read before", uncached::read_before);
}

#[test]
fn killed_senders_leave_nothing() {
    support::once("killed", uncached::killed);
}

#[test]
fn entering_holds_up_no_others() {
    support::check(
        "entering",
        0..1,
        support::on_cpus(2),
        uncached::entering_waits_alone,
    );
}

#[test]
fn ranges_in_two_runs_count_twice() {
    support::once("many ranges", attacks::many_ranges);
}

#[test]
fn addresses_stay_with_their_path() {
    support::once("addresses", addresses::stay_with_their_path);
}

#[test]
fn addresses_have_owners() {
    support::once("owners", addresses::have_owners);
}

#[test]
fn a_receivers_number_is_never_anothers() {
    support::once("numbers", attacks::number_of_another);
}

/// Packets of a card in fbufs of the kernel: what was given or is shown does not change, and what a
/// device may write is mapped nowhere after the end.
#[test]
fn packets_in_fbufs_of_the_kernel() {
    for cpus in [1, 2] {
        let machine = support::machine(cpus, 4096);
        support::check("fbufs of the kernel", 0..20, machine, move || {
            kernel::random(sim::random_u64(), cpus);
        });
    }
}

#[test]
fn strangers_get_no_fbufs_of_the_kernel() {
    let machine = support::machine(1, 4096);
    support::check("strangers", 0..1, machine, kernel::strangers_get_nothing);
}

#[test]
fn an_ended_path_of_the_kernel_keeps_what_is_held() {
    let machine = support::machine(1, 4096);
    support::check("ended", 0..1, machine, kernel::ended);
}

#[test]
fn packets_cost_no_mappings() {
    use nucleus::counters::Counter;
    let counter = || {
        let all = [
            Counter::tlb_local_page,
            Counter::tlb_local_full,
            Counter::tlb_remote,
        ];
        let mut all: Vec<u64> = all.map(Counter::total).to_vec();
        all.push(vm::counters::Counter::fault_object.total());
        all
    };
    let machine = support::machine(1, 4096);
    support::check("warm", 0..1, machine, move || kernel::warm(counter));
}

/// A space of 32 bits has no room for the region.
#[test]
fn narrow_spaces_are_refused() {
    support::once("narrow", || {
        let layout = Layout::for_32_bits(8 << 20, Randomness::Everything);
        let map = Map::with_layout(Limits::NONE, layout).expect("memory");
        let entered = Domain::enter(&map, 1, &OnceArc::new());
        assert_eq!(entered.err(), Some(Errno::EINVAL));
    });
}
