//! The owner of an open file description (`F_SETOWN`, `O_ASYNC`).

use alloc::{boxed::Box, sync::Arc};
use core::any::Any;

use abi::{Errno, Result, raw::general::FASYNC};
use fs::Asynchronous;

use super::{Kind, Owner, Sigio};
use crate::process::{
    Credentials, Pid,
    files::{Attached, OpenFile},
    make_room,
};

impl OpenFile {
    /// Returns the owner that gets a signal when the file is ready, and its number (`F_GETOWN`,
    /// `F_GETSIG`).
    pub fn owner(&self) -> Owner {
        let sigio = self.named_owner().and_then(|it| of(it));
        sigio.map_or(Owner::nobody(), Sigio::owner)
    }

    /// Changes what [`owner`](OpenFile::owner) gives.
    ///
    /// # Errors
    /// Those of `change`, `ENOMEM`.
    pub fn change_owner(&self, change: impl FnOnce(&mut Owner) -> Result<()>) -> Result<()> {
        let mut owner = self.owner();
        change(&mut owner)?;
        self.sigio()?.set_owner(owner);
        Ok(())
    }

    /// Sets or clears `O_ASYNC`, for a caller that knows the description as `fd`. Returns whether
    /// the file can do that.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn set_asynchronous(
        &self,
        on: bool,
        fd: i32,
        caller: Pid,
        who: &Credentials,
    ) -> Result<bool> {
        let default = match self.file().asynchronous() {
            Asynchronous::Never => return Ok(false),
            Asynchronous::Named => None,
            Asynchronous::Foreground(0) => Some((Kind::Process, caller)),
            Asynchronous::Foreground(group) => Some((Kind::Group, group)),
        };
        if on == self.flags().has(FASYNC) {
            return Ok(true);
        }
        if !on {
            self.set_flag(FASYNC, false);
            self.sigio()?.end();
            return Ok(true);
        }
        let sigio = self.sigio()?;
        if let Some((kind, id)) = default
            && sigio.owner().is_nobody()
        {
            // A group whose last member has just ended needs no signal.
            let _ = self.change_owner(|owner| owner.name(kind, id, who));
        }
        sigio.begin(self.file(), fd)?;
        self.set_flag(FASYNC, true);
        Ok(true)
    }

    fn sigio(&self) -> Result<&Sigio> {
        let sigio = match self.named_owner() {
            Some(sigio) => sigio,
            None => {
                make_room()?;
                let new: Arc<dyn Attached> = Sigio::new()?;
                self.rare().sigio.get_or_insert(|| Box::new(new))
            }
        };
        of(sigio).ok_or(Errno::EINVAL)
    }
}

/// The slot's owner: nothing else is ever put there.
fn of(attached: &Arc<dyn Attached>) -> Option<&Sigio> {
    (&**attached as &dyn Any).downcast_ref()
}

impl Attached for Sigio {
    fn released(&self) {
        self.end();
    }
}
