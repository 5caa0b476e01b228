//! `causeway cache`: shows what the user's cache folder has, and removes it.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use clap::Args;
use indicatif::HumanBytes;

use super::cache;
use super::stored::Form;

const DAY: u64 = 24 * 60 * 60;

/// Shows what is kept in `~/.cache/causeway` (or `CAUSEWAY_CACHE`): roots packed for the guest,
/// finished roots of Debian's packages, the packages themselves
#[derive(Args, Debug)]
pub struct Cache {
    /// Remove it: what is needed again is made or fetched again
    #[arg(long)]
    prune: bool,
    /// Remove only what was not used for so many days
    #[arg(long, value_name = "DAYS", requires = "prune")]
    older: Option<u64>,
}

/// A part of the cache that is removed as a whole.
struct Item {
    what: String,
    /// The first one is the item, others tell what it is.
    files: Vec<PathBuf>,
    bytes: u64,
    used: SystemTime,
}

impl Cache {
    /// Shows or removes.
    ///
    /// # Errors
    /// When the cache cannot be read or changed.
    pub fn run(&self) -> Result<()> {
        let top = cache::top()?;
        let least = Duration::from_secs(self.older.unwrap_or(0) * DAY);
        let (mut shown, mut sum) = (Vec::new(), 0);
        for kind in kinds(&top)? {
            let folder = top.join(&kind);
            // The lock keeps other processes from using or making the files that are removed.
            let locked = self.prune && folder.join(cache::LOCK).exists();
            let _lock = locked.then(|| cache::lock(&folder)).transpose()?;
            for item in items(&kind, &folder)? {
                if self.prune && age(item.used) < least {
                    continue;
                }
                if self.prune {
                    item.remove()?;
                }
                sum += item.bytes;
                shown.push(item);
            }
        }
        shown.sort_by_key(|item| std::cmp::Reverse(item.used));
        for item in &shown {
            let (size, used) = (HumanBytes(item.bytes).to_string(), ago(age(item.used)));
            println!("{size:>11}  {used:<13}  {}", item.what);
        }
        let done = if self.prune { "removed from" } else { "in" };
        println!(
            "{:>11}  {done} {}",
            HumanBytes(sum).to_string(),
            top.display()
        );
        Ok(())
    }
}

impl Item {
    fn of(what: String, files: Vec<PathBuf>) -> Result<Self> {
        let (mut bytes, mut used) = (0, SystemTime::UNIX_EPOCH);
        for file in &files {
            let about = fs::symlink_metadata(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            bytes += size(file, &about)?;
            used = used.max(last_use(&about));
        }
        Ok(Self {
            what,
            files,
            bytes,
            used,
        })
    }

    fn remove(&self) -> Result<()> {
        for file in &self.files {
            let removed = if file.is_dir() {
                fs::remove_dir_all(file)
            } else {
                fs::remove_file(file)
            };
            removed.with_context(|| format!("cannot remove {}", file.display()))?;
        }
        Ok(())
    }
}

/// The folders of the cache, in order; none if there is no cache.
fn kinds(top: &Path) -> Result<Vec<String>> {
    let names = names(top)?.into_iter();
    Ok(names.filter(|name| top.join(name).is_dir()).collect())
}

/// The names in a folder, in order; none if there is no such folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    let cannot = || format!("cannot read {}", folder.display());
    let mut names = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(folder).with_context(cannot)? {
            let name = entry.with_context(cannot)?.file_name();
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The parts of a folder of the cache.
fn items(kind: &str, folder: &Path) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for name in names(folder)? {
        let path = folder.join(&name);
        let ending = path.extension().map(|it| it.to_string_lossy().into_owned());
        // The file beside it that tells of what it was made.
        let note = |ending: &str| {
            let note = path.with_extension(ending);
            let text = fs::read_to_string(&note).ok()?;
            Some((note, text.trim().to_owned()))
        };
        let (what, note) = match (kind, ending.as_deref()) {
            (_, None) if name == cache::LOCK => continue,
            (_, Some("stamp" | "packages" | "conf")) => continue,
            (_, Some("new")) => (format!("{kind}/{name}, which is not finished"), None),
            ("debian", Some("tar")) => match note("packages") {
                Some((note, text)) => (format!("Debian with {text}"), Some(note)),
                None => ("Debian with packages that are not named".into(), None),
            },
            ("debian", None) if name == "packages" => {
                let count = names(&path)?.len();
                (format!("{count} packages of Debian's"), None)
            }
            (kind, Some(_)) if let Some(form) = Form::of(kind) => {
                let form = match form {
                    Form::Archive => "to be unpacked into memory",
                    Form::Image => "as a disk",
                };
                match note("stamp") {
                    Some((note, text)) => {
                        let root = text.split_once(' ').map_or("", |(_, root)| root);
                        (format!("the root {root}, {form}"), Some(note))
                    }
                    None => (format!("a root, {form}"), None),
                }
            }
            _ => (format!("{kind}/{name}"), None),
        };
        items.push(Item::of(what, [path].into_iter().chain(note).collect())?);
    }
    Ok(items)
}

/// The bytes on the disk that a file takes, or a folder with all in it.
fn size(path: &Path, about: &Metadata) -> Result<u64> {
    let mut bytes = about.blocks() * 512;
    if about.is_dir() {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            bytes += size(&entry.path(), &entry.metadata()?)?;
        }
    }
    Ok(bytes)
}

/// The latest of a file's times.
fn last_use(about: &Metadata) -> SystemTime {
    let times = [about.atime(), about.mtime(), about.ctime()];
    let latest = times.into_iter().max().unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(latest).unwrap_or(0))
}

fn age(used: SystemTime) -> Duration {
    used.elapsed().unwrap_or_default()
}

fn ago(age: Duration) -> String {
    match age.as_secs() / DAY {
        0 => "today".into(),
        1 => "a day ago".into(),
        days => format!("{days} days ago"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_its_name_and_goes_as_a_whole() {
        let top = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = top.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("images/1.ext2", "disk");
        write("images/1.stamp", "0123 /my root\n");
        write("images/lock", "");
        write("debian/2.tar", "tar");
        write("debian/2.packages", "bash git\n");
        write("debian/packages/a.deb", "deb");
        write("debian/apt.conf", "");
        write("other/file", "x");
        assert_eq!(kinds(top.path()).unwrap(), ["debian", "images", "other"]);
        let named = |kind: &str| -> Vec<String> {
            let items = items(kind, &top.path().join(kind)).unwrap();
            items.into_iter().map(|item| item.what).collect()
        };
        assert_eq!(named("images"), ["the root /my root, as a disk"]);
        let debian = ["Debian with bash git", "1 packages of Debian's"];
        assert_eq!(named("debian"), debian);
        assert_eq!(named("other"), ["other/file"]);
        for item in items("images", &top.path().join("images")).unwrap() {
            assert!(item.bytes > 0 && age(item.used).as_secs() < 1000);
            item.remove().unwrap();
        }
        assert_eq!(names(&top.path().join("images")).unwrap(), ["lock"]);
        assert_eq!(ago(Duration::from_secs(DAY * 3 + 5)), "3 days ago");
    }
}
