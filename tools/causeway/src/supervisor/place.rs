//! Names of guests, and the folder of each.
//!
//! A name belongs to the process that has its folder's lock. A supervisor that was killed leaves
//! the folder behind, without the lock: the next one with the name removes what is in it.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::process::getuid;
use serde::{Deserialize, Serialize};

use crate::scratch::short_path;

/// The most characters of a name.
const LONGEST: usize = 64;

/// The socket on which a guest is reached, in its folder.
const SOCKET: &str = "socket";

/// Bytes by which a state may grow until the guest's end.
const ROOM: usize = 128;

/// How long a name may be looked at by others before it counts as taken.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is known of a guest.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct State {
    /// The command, as a person reads it; empty for a shell.
    pub command: String,
    pub cpus: u32,
    /// In QEMU's words.
    pub memory: String,
    /// When it was started, in seconds since 1970.
    pub started: u64,
    /// Whether it has no terminal or pipes of its own.
    pub is_detached: bool,
    /// Whether its first program has a terminal.
    pub has_terminal: bool,
    /// The status of its end, and when that was.
    pub ended: Option<(u8, u64)>,
}

/// A guest as others see it.
pub struct Found {
    pub name: String,
    pub state: State,
    pub is_running: bool,
}

impl Found {
    /// Whether this is what has become of a guest that was found before, and not a later one.
    pub fn is_same(&self, before: &Self) -> bool {
        self.state.started == before.state.started && !self.is_running
    }
}

/// A name that belongs to this process.
pub struct Place {
    folder: PathBuf,
    /// Keeps the name while it is open.
    lock: File,
}

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Returns the folder of all guests' folders, which other users can't enter.
///
/// # Errors
/// When it can't be made, or belongs to another user.
fn base() -> Result<PathBuf> {
    let uid = getuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let base = match runtime.filter(|folder| folder.is_absolute() && folder.is_dir()) {
        Some(runtime) => runtime.join("causeway"),
        None => PathBuf::from(format!("/tmp/causeway-{uid}")),
    };
    let shown = base.display();
    match DirBuilder::new().mode(0o700).create(&base) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {shown}"));
        }
        _ => {}
    }
    let is = fs::symlink_metadata(&base)?;
    ensure!(
        is.is_dir() && is.uid() == uid,
        "{shown} is not a folder of this user's: remove it"
    );
    if is.mode() & 0o077 != 0 {
        fs::set_permissions(&base, fs::Permissions::from_mode(0o700))?;
    }
    Ok(base)
}

/// Refuses what can't be a name.
///
/// # Errors
/// A sentence that says what can.
pub fn check_name(name: &str) -> Result<()> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    ensure!(
        starts && name.len() <= LONGEST && name.chars().all(is_word),
        "the name {name:?} is not one of at most {LONGEST} letters, digits, `_`, `.` and `-` that \
         starts with a letter or digit"
    );
    Ok(())
}

/// Makes up a name that no guest has.
///
/// # Errors
/// When there is no folder for guests.
pub fn make_up() -> Result<String> {
    let base = base()?;
    let mut bytes = [0; 3];
    let mut random = File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    loop {
        random.read_exact(&mut bytes)?;
        let [a, b, c] = bytes;
        let name = format!("guest-{a:02x}{b:02x}{c:02x}");
        if !base.join(&name).exists() {
            return Ok(name);
        }
    }
}

impl Place {
    /// Takes a name.
    ///
    /// # Errors
    /// When a running guest has it.
    pub fn take(name: &str) -> Result<Self> {
        check_name(name)?;
        let base = base()?;
        let place = Self::lock(&base, name)?
            .with_context(|| format!("a guest with the name {name} runs already"))?;
        place.clear()?;
        Ok(place)
    }

    /// Locks a name's folder, unless it is locked.
    fn lock(base: &Path, name: &str) -> Result<Option<Self>> {
        let folder = base.join(name);
        let start = Instant::now();
        loop {
            match DirBuilder::new().mode(0o700).create(&folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("cannot make {}", folder.display()));
                }
                _ => {}
            }
            let path = folder.join("lock");
            let mut open = OpenOptions::new();
            let lock = open.create(true).write(true).mode(0o600).open(&path);
            let lock = match lock {
                // The last owner is removing the folder; or it is a link to none.
                Err(error) if error.kind() == ErrorKind::NotFound && start.elapsed() < PATIENCE => {
                    continue;
                }
                lock => lock.with_context(|| format!("cannot make {}", path.display()))?,
            };
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                if start.elapsed() > PATIENCE {
                    return Ok(None);
                }
                thread::sleep(Duration::from_millis(10));
                continue;
            }
            // A lock of a file that has been removed is of no use.
            let inode = fs::metadata(&path).map(|is| is.ino());
            if inode.is_ok_and(|inode| lock.metadata().is_ok_and(|is| is.ino() == inode)) {
                return Ok(Some(Self { folder, lock }));
            }
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes all but the lock.
    fn clear(&self) -> Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name() != OsStr::new("lock") {
                fs::remove_file(entry.path())
                    .with_context(|| format!("cannot remove {}", entry.path().display()))?;
            }
        }
        Ok(())
    }

    /// Writes down what is known of the guest.
    ///
    /// # Errors
    /// When the folder can't be written.
    pub fn note(&self, state: &State) -> Result<()> {
        let new = self.folder.join("state.new");
        let bytes = serde_json::to_vec(state)?;
        // What is reserved there is overwritten, not freed.
        let mut open = OpenOptions::new();
        let mut file = open.create(true).write(true).truncate(false).open(&new)?;
        file.write_all(&bytes)?;
        file.set_len(bytes.len() as u64)?;
        fs::rename(&new, self.folder.join("state"))?;
        if state.ended.is_none() {
            // The end is to be noted on a disk that is full, too.
            fs::write(new, vec![0; bytes.len() + ROOM])?;
        }
        Ok(())
    }

    /// Opens the socket on which the guest is reached.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn listen(&self) -> Result<UnixListener> {
        let (folder, path) = short_path(&self.folder)?;
        let listener =
            UnixListener::bind(path.join(SOCKET)).context("cannot make the guest's socket")?;
        drop(folder);
        Ok(listener)
    }

    /// Gives the name back and removes the folder.
    pub fn remove(self) {
        // What is left is cleared when the name is used again.
        let _ = self.clear();
        let _ = fs::remove_file(self.folder.join("lock"));
        let _ = fs::remove_dir(&self.folder);
    }

    /// Releases the name; the folder stays for commands that ask how the guest ended.
    pub fn leave(self) {
        let _ = fs::remove_file(self.folder.join(SOCKET));
        drop(self.lock);
    }
}

fn connect_to(folder: &Path) -> Result<UnixStream> {
    let (open, path) = short_path(folder)?;
    let stream = UnixStream::connect(path.join(SOCKET))?;
    drop(open);
    Ok(stream)
}

/// Connects to a running guest.
///
/// # Errors
/// When there is none with this name.
pub fn connect(name: &str) -> Result<UnixStream> {
    check_name(name)?;
    let folder = base()?.join(name);
    connect_to(&folder).map_err(|_| match state(&folder) {
        Some(_) => anyhow!("the guest {name} does not run any more"),
        None => anyhow!("no guest has the name {name} (`causeway ps` lists them)"),
    })
}

fn state(folder: &Path) -> Option<State> {
    serde_json::from_slice(&fs::read(folder.join("state")).ok()?).ok()
}

/// Returns what is known of all guests with names, sorted by name.
///
/// # Errors
/// When the folder can't be read.
pub fn all() -> Result<Vec<Found>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(base()?)? {
        let entry = entry?;
        all.extend(found(&entry.path(), &entry.file_name()));
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

fn found(folder: &Path, name: &OsStr) -> Option<Found> {
    Some(Found {
        name: name.to_str()?.into(),
        state: state(folder)?,
        is_running: connect_to(folder).is_ok(),
    })
}

/// Returns what is known of a guest, and its folder.
///
/// # Errors
/// When there is none with this name.
pub fn find(name: &str) -> Result<(Found, PathBuf)> {
    check_name(name)?;
    let folder = base()?.join(name);
    let found = found(&folder, OsStr::new(name));
    let found = found.with_context(|| format!("no guest has the name {name}"))?;
    Ok((found, folder))
}

/// Removes what is kept of a guest that has ended.
///
/// # Errors
/// When there is nothing, or the guest runs.
pub fn remove(name: &str) -> Result<()> {
    let (found, folder) = find(name)?;
    if found.is_running {
        bail!("the guest {name} runs: `causeway stop {name}` ends it");
    }
    let base = folder.parent().context("a folder in none")?;
    let place = Place::lock(base, name)?;
    let place = place.with_context(|| format!("the guest {name} is ending"))?;
    place.remove();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            command: "sleep 1".into(),
            cpus: 1,
            memory: "512M".into(),
            started: 7,
            is_detached: true,
            has_terminal: false,
            ended: None,
        }
    }

    #[test]
    fn names_are_words() {
        for name in ["a", "web-1", "A.b_c"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "x".repeat(65);
        for name in ["", ".", "..", "-a", "a/b", "a b", "ä", &long] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_name_has_one_owner_and_can_be_taken_again() {
        let base = tempfile::tempdir().unwrap();
        let take = || Place::lock(base.path(), "x").unwrap();
        let first = take().unwrap();
        first.note(&state()).unwrap();
        assert!(take().is_none());
        let folder = base.path().join("x");
        assert!(!found(&folder, OsStr::new("x")).unwrap().is_running);
        let listener = first.listen().unwrap();
        let seen = found(&folder, OsStr::new("x")).unwrap();
        assert!(seen.is_running && seen.state == state());
        // A killed owner leaves everything behind but the lock.
        drop((listener, first));
        assert!(!found(&folder, OsStr::new("x")).unwrap().is_running);
        let second = take().unwrap();
        second.clear().unwrap();
        drop(second.listen().unwrap());
        second.remove();
        assert!(!folder.exists());
    }

    #[test]
    fn many_who_want_a_name_get_it_one_by_one() {
        let base = tempfile::tempdir().unwrap();
        let owners = std::sync::Mutex::new(());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        if let Some(place) = Place::lock(base.path(), "x").unwrap() {
                            let alone = owners.try_lock();
                            assert!(alone.is_ok());
                            place.note(&state()).unwrap();
                            drop(alone);
                            place.remove();
                        }
                    }
                });
            }
        });
    }
}
