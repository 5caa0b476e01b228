//! Domains and paths that come and go.

use abi::Errno;
use fbuf::region::{Mode, Path, REGION_SIZE, REGION_START};
use nucleus::frame;

use super::{
    Run,
    model::{ModelPath, Space},
};

impl Run {
    pub(super) fn enter(&mut self) {
        let who = self.model.made;
        self.model.made += 1;
        self.model.spaces.insert(who, Space::new(self.cpus));
    }

    pub(super) fn make_path(&mut self) -> Option<()> {
        let who = self.who()?;
        let mode = Mode::from_bits(self.numbers.below(4) as u32)?;
        let path = Path::new(&self.model.spaces[&who].domain, mode, 4).expect("memory");
        self.model.paths.push(ModelPath {
            path,
            mode,
            originator: Some(who),
            members: Default::default(),
            is_closed: false,
        });
        Some(())
    }

    pub(super) fn attach(&mut self) -> Option<()> {
        let (who, path) = (self.who()?, self.path()?);
        self.be_short();
        let it = &mut self.model.paths[path];
        let result = it.path.attach(&self.model.spaces[&who].domain);
        frame::seem_scarce_after(None);
        if self.shortages && result == Err(Errno::ENOMEM) {
            return None;
        }
        let known = it.members.iter().find(|(_, member)| **member == who);
        match known {
            Some((index, _)) => assert_eq!(result, Ok(*index)),
            None if it.originator == Some(who) => assert_eq!(result, Err(Errno::EPERM)),
            None if it.originator.is_none() => assert_eq!(result, Err(Errno::EPIPE)),
            None => {
                let index = result.expect("room");
                assert!(it.members.insert(index, who).is_none());
            }
        }
        Some(())
    }

    pub(super) fn leave(&mut self) -> Option<()> {
        let (who, path) = (self.who()?, self.path()?);
        self.model.paths[path]
            .path
            .leave(&self.model.spaces[&who].domain);
        self.model.leave(who, path);
        Some(())
    }

    pub(super) fn die(&mut self) -> Option<()> {
        let who = self.who()?;
        let space = self.model.spaces.remove(&who)?;
        self.be_short();
        space.end(self.numbers.chance(50));
        frame::seem_scarce_after(None);
        for path in 0..self.model.paths.len() {
            self.model.leave(who, path);
        }
        for page in self.model.pages.values_mut() {
            page.granted.remove(&who);
        }
        Some(())
    }

    pub(super) fn close(&mut self) -> Option<()> {
        let path = self.path()?;
        self.be_short();
        self.model.paths[path].path.close();
        frame::seem_scarce_after(None);
        self.model.paths[path].is_closed = true;
        for who in 0..self.model.made {
            self.model.leave(who, path);
        }
        Some(())
    }

    /// A child has nothing of the region.
    pub(super) fn fork(&mut self) -> Option<()> {
        let who = self.who()?;
        let child = self.model.spaces[&who].map.fork().expect("memory");
        child.for_each_entry(&mut |entry| {
            let start = entry.range.start;
            assert!(start < REGION_START || start >= REGION_START + REGION_SIZE);
        });
        Some(())
    }
}
