//! Names: links, renames, folders, paths.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::support::{Outcome, c, folder};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("names: hard links", hard_links),
    ("names: symbolic links", symbolic_links),
    ("names: rename", rename),
    ("names: folders", folders),
    ("names: an unlinked file lives on", unlinked),
    ("names: a folder is listed whole", listing),
    ("names: dots and slashes", dots),
    ("names: too long", too_long),
    ("names: two processes rename at once", race),
];

fn text<T>(result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn hard_links() -> Outcome {
    let folder = folder("hard")?;
    let (a, b) = (format!("{folder}/a"), format!("{folder}/b"));
    text(fs::write(&a, "one file"))?;
    call!(link(c(&a).as_ptr(), c(&b).as_ptr()));
    let (first, second) = (text(fs::metadata(&a))?, text(fs::metadata(&b))?);
    ensure!(
        first.ino() == second.ino() && first.nlink() == 2,
        "{} links",
        first.nlink()
    );
    text(fs::write(&b, "changed"))?;
    ensure!(
        text(fs::read(&a))? == b"changed",
        "the other name has old contents"
    );
    refused!(EEXIST, link(c(&a).as_ptr(), c(&b).as_ptr()));
    refused!(
        EPERM,
        link(c(&folder).as_ptr(), c(&format!("{folder}/d")).as_ptr())
    );
    refused!(
        ENOENT,
        link(c("/none").as_ptr(), c(&format!("{folder}/e")).as_ptr())
    );
    refused!(
        EXDEV,
        link(
            c("/proc/version").as_ptr(),
            c(&format!("{folder}/p")).as_ptr()
        )
    );
    text(fs::remove_file(&a))?;
    ensure!(text(fs::metadata(&b))?.nlink() == 1, "the count stays");
    Ok(())
}

fn symbolic_links() -> Outcome {
    let folder = folder("symbolic")?;
    let at = |name: &str| c(&format!("{folder}/{name}"));
    text(fs::write(format!("{folder}/f"), "target"))?;
    call!(symlink(c"f".as_ptr(), at("l").as_ptr()));
    ensure!(
        text(fs::read(format!("{folder}/l")))? == b"target",
        "the link leads elsewhere"
    );
    let mut buffer = [9u8; 10];
    let count = call!(readlink(at("l").as_ptr(), buffer.as_mut_ptr().cast(), 10));
    ensure!(
        count == 1 && buffer[..2] == [b'f', 9],
        "readlink: {buffer:?}"
    );
    refused!(
        EINVAL,
        readlink(at("f").as_ptr(), buffer.as_mut_ptr().cast(), 10)
    );
    ensure!(
        text(fs::symlink_metadata(format!("{folder}/l")))?.len() == 1,
        "its size"
    );
    call!(symlink(c"loop2".as_ptr(), at("loop1").as_ptr()));
    call!(symlink(c"loop1".as_ptr(), at("loop2").as_ptr()));
    refused!(ELOOP, open(at("loop1").as_ptr(), libc::O_RDONLY));
    call!(symlink(c"nowhere".as_ptr(), at("dangling").as_ptr()));
    refused!(ENOENT, open(at("dangling").as_ptr(), libc::O_RDONLY));
    call!(open(
        at("dangling").as_ptr(),
        libc::O_CREAT | libc::O_WRONLY,
        0o600
    ));
    ensure!(
        text(fs::exists(format!("{folder}/nowhere")))?,
        "the target was not made"
    );
    refused!(EEXIST, symlink(c"x".as_ptr(), at("l").as_ptr()));
    refused!(ENOENT, symlink(c"".as_ptr(), at("m").as_ptr()));
    call!(mkdir(at("d").as_ptr(), 0o700));
    call!(symlink(c"d".as_ptr(), at("ld").as_ptr()));
    text(fs::write(format!("{folder}/ld/inside"), "x"))?;
    ensure!(
        text(fs::exists(format!("{folder}/d/inside")))?,
        "a link to a folder"
    );
    refused!(ENOTDIR, rmdir(at("ld").as_ptr()));
    call!(unlink(at("ld").as_ptr()));
    ensure!(
        text(fs::exists(format!("{folder}/d")))?,
        "the folder went with its link"
    );
    Ok(())
}

fn rename() -> Outcome {
    let folder = folder("rename")?;
    let at = |name: &str| c(&format!("{folder}/{name}"));
    let write = |name: &str| text(fs::write(format!("{folder}/{name}"), name));
    write("a")?;
    write("b")?;
    call!(rename(at("a").as_ptr(), at("b").as_ptr()));
    ensure!(
        text(fs::read(format!("{folder}/b")))? == b"a",
        "not replaced"
    );
    refused!(ENOENT, rename(at("a").as_ptr(), at("c").as_ptr()));
    for name in ["d", "e", "d/sub"] {
        call!(mkdir(at(name).as_ptr(), 0o700));
    }
    refused!(EINVAL, rename(at("d").as_ptr(), at("d/sub/x").as_ptr()));
    refused!(EISDIR, rename(at("b").as_ptr(), at("e").as_ptr()));
    refused!(ENOTDIR, rename(at("e").as_ptr(), at("b").as_ptr()));
    refused!(ENOTEMPTY, rename(at("e").as_ptr(), at("d").as_ptr()));
    call!(rename(at("d").as_ptr(), at("e").as_ptr()));
    ensure!(
        text(fs::exists(format!("{folder}/e/sub")))?,
        "the folder's contents"
    );
    call!(rename(at("e/sub").as_ptr(), at("moved").as_ptr()));
    ensure!(
        text(fs::metadata(format!("{folder}/e")))?.nlink() == 2,
        "links of the old parent"
    );
    let up = text(fs::metadata(format!("{folder}/moved/..")))?;
    ensure!(
        up.ino() == text(fs::metadata(&folder))?.ino(),
        "`..` leads to the old parent"
    );
    // Two names of one file: nothing happens.
    call!(link(at("b").as_ptr(), at("b2").as_ptr()));
    call!(rename(at("b").as_ptr(), at("b2").as_ptr()));
    ensure!(text(fs::exists(format!("{folder}/b")))?, "a name went away");
    let flags = libc::RENAME_NOREPLACE;
    write("n")?;
    refused!(
        EEXIST,
        renameat2(
            libc::AT_FDCWD,
            at("n").as_ptr(),
            libc::AT_FDCWD,
            at("b").as_ptr(),
            flags
        )
    );
    refused!(EXDEV, rename(at("n").as_ptr(), c"/proc/n".as_ptr()));
    Ok(())
}

fn folders() -> Outcome {
    let folder = folder("folders")?;
    let at = |name: &str| c(&format!("{folder}/{name}"));
    call!(mkdir(at("d").as_ptr(), 0o755));
    refused!(EEXIST, mkdir(at("d").as_ptr(), 0o755));
    refused!(ENOENT, mkdir(at("x/y").as_ptr(), 0o755));
    call!(mkdir(at("d/e").as_ptr(), 0o755));
    ensure!(
        text(fs::metadata(format!("{folder}/d")))?.nlink() == 3,
        "links of a folder"
    );
    refused!(ENOTEMPTY, rmdir(at("d").as_ptr()));
    refused!(EISDIR, unlink(at("d").as_ptr()));
    text(fs::write(format!("{folder}/f"), ""))?;
    refused!(ENOTDIR, rmdir(at("f").as_ptr()));
    refused!(EINVAL, rmdir(at("d/e/.").as_ptr()));
    call!(chdir(at("d/e").as_ptr()));
    let here = text(std::env::current_dir())?;
    ensure!(
        here.to_string_lossy() == format!("{folder}/d/e"),
        "here is {}",
        here.display()
    );
    call!(rmdir(at("d/e").as_ptr()));
    let mut buffer = [0; 100];
    // SAFETY: the buffer is as long as said.
    let gone = unsafe { libc::getcwd(buffer.as_mut_ptr(), 100) };
    ensure!(gone.is_null(), "a removed folder has a path");
    refused!(ENOENT, mkdir(c"new".as_ptr(), 0o755));
    refused!(ENOTDIR, chdir(at("f").as_ptr()));
    refused!(ENOENT, chdir(c"/none".as_ptr()));
    Ok(())
}

fn unlinked() -> Outcome {
    let (path, open) = crate::support::file("unlinked", b"still here")?;
    text(fs::remove_file(&path))?;
    let mut bytes = [0u8; 10];
    call!(read(open, bytes.as_mut_ptr().cast(), 10));
    ensure!(&bytes == b"still here", "{bytes:?}");
    // SAFETY: all zeros is a valid stat to be overwritten.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    call!(fstat(open, &mut stat));
    ensure!(stat.st_nlink == 0, "{} links", stat.st_nlink);
    Ok(())
}

fn listing() -> Outcome {
    let folder = folder("listing")?;
    let names: BTreeSet<String> = (0..1000)
        .map(|n| format!("file-{n}-{}", "x".repeat(n % 90)))
        .collect();
    for name in &names {
        text(fs::write(format!("{folder}/{name}"), ""))?;
    }
    let list = || -> Result<Vec<String>, String> {
        text(fs::read_dir(&folder))?
            .map(|entry| Ok(text(entry)?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    let found = list()?;
    ensure!(found.len() == 1000, "{} names listed", found.len());
    ensure!(
        found.into_iter().collect::<BTreeSet<_>>() == names,
        "other names"
    );
    // What is not removed while the folder is read is listed exactly once.
    let mut seen = BTreeSet::new();
    for (number, entry) in text(fs::read_dir(&folder))?.enumerate() {
        let name = text(entry)?.file_name().to_string_lossy().into_owned();
        ensure!(seen.insert(name.clone()), "{name} was listed twice");
        if number % 2 == 0 {
            text(fs::remove_file(format!("{folder}/{name}")))?;
        }
    }
    ensure!(seen == names, "{} of 1000 names while removing", seen.len());
    text(fs::remove_dir_all(&folder))
}

fn dots() -> Outcome {
    let folder = folder("dots")?;
    text(fs::create_dir_all(format!("{folder}/a/b")))?;
    text(fs::write(format!("{folder}/a/f"), "x"))?;
    for path in [
        "a/./f",
        "a/b/../f",
        "a//f",
        "./a/b/.././../a/f",
        "../../../../../..//FOLDER/a/f",
    ] {
        call!(chdir(c(&folder).as_ptr()));
        let path = path.replace("/FOLDER", &folder);
        call!(access(c(&path).as_ptr(), libc::F_OK));
    }
    refused!(
        ENOTDIR,
        access(c(&format!("{folder}/a/f/")).as_ptr(), libc::F_OK)
    );
    refused!(
        ENOTDIR,
        access(c(&format!("{folder}/a/f/.")).as_ptr(), libc::F_OK)
    );
    refused!(ENOENT, access(c"".as_ptr(), libc::F_OK));
    let root = text(fs::metadata("/.."))?;
    ensure!(
        root.ino() == text(fs::metadata("/"))?.ino(),
        "`..` of the root is another folder"
    );
    Ok(())
}

fn too_long() -> Outcome {
    let folder = folder("long")?;
    let name = "n".repeat(255);
    text(fs::write(format!("{folder}/{name}"), ""))?;
    refused!(
        ENAMETOOLONG,
        mkdir(c(&format!("{folder}/{name}n")).as_ptr(), 0o700)
    );
    refused!(ENAMETOOLONG, mkdir(c(&"/x".repeat(2100)).as_ptr(), 0o700));
    let deep = format!("{folder}/{}", "d/".repeat(300));
    text(fs::create_dir_all(&deep))?;
    call!(access(c(&deep).as_ptr(), libc::F_OK));
    text(fs::remove_dir_all(format!("{folder}/d")))
}

fn race() -> Outcome {
    let folder = folder("race")?;
    for name in ["a", "b", "a/x", "b/y"] {
        text(fs::create_dir(format!("{folder}/{name}")))?;
    }
    let children: Vec<_> = [("a/x", "b/x"), ("b/y", "a/y"), ("a", "c"), ("b", "d")]
        .into_iter()
        .map(|(from, to)| {
            crate::support::spawn(|| {
                let (from, to) = (c(&format!("{folder}/{from}")), c(&format!("{folder}/{to}")));
                for _ in 0..500 {
                    // SAFETY: renames by valid paths; failing is part of the race.
                    unsafe {
                        libc::rename(from.as_ptr(), to.as_ptr());
                        libc::rename(to.as_ptr(), from.as_ptr());
                    }
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    for child in children {
        crate::support::wait(child)?;
    }
    let mut folders = 0;
    let mut todo = vec![folder.clone()];
    while let Some(next) = todo.pop() {
        for entry in text(fs::read_dir(next))? {
            folders += 1;
            todo.push(text(entry)?.path().to_string_lossy().into_owned());
        }
    }
    ensure!(folders == 4, "{folders} folders are left of 4");
    text(fs::remove_dir_all(&folder))
}
