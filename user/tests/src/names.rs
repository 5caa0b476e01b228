//! Names: links, renames, folders, paths.

use support::prelude::*;

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

fn hard_links() -> Outcome {
    let folder = folder("hard")?;
    let (a, b) = (format!("{folder}/a"), format!("{folder}/b"));
    fs::write(&a, "one file")?;
    call!(link(c(&a).as_ptr(), c(&b).as_ptr()));
    let (first, second) = (fs::metadata(&a)?, fs::metadata(&b)?);
    ensure!(
        first.ino() == second.ino() && first.nlink() == 2,
        "{} links",
        first.nlink()
    );
    fs::write(&b, "changed")?;
    equal!(fs::read(&a)?, b"changed");
    refused! {
        link(c(&a).as_ptr(), c(&b).as_ptr()) => EEXIST;
        link(c(&folder).as_ptr(), c(&format!("{folder}/d")).as_ptr()) => EPERM;
        link(c("/none").as_ptr(), c(&format!("{folder}/e")).as_ptr()) => ENOENT;
        link(c("/proc/version").as_ptr(), c(&format!("{folder}/p")).as_ptr()) => EXDEV;
    }
    fs::remove_file(&a)?;
    ensure!(fs::metadata(&b)?.nlink() == 1, "the count stays");
    Ok(())
}

fn symbolic_links() -> Outcome {
    let folder = folder("symbolic")?;
    let at = |name: &str| c(&format!("{folder}/{name}"));
    fs::write(format!("{folder}/f"), "target")?;
    call!(symlink(c"f".as_ptr(), at("l").as_ptr()));
    equal!(fs::read(format!("{folder}/l"))?, b"target");
    let mut buffer = [9u8; 10];
    let count = call!(readlink(at("l").as_ptr(), buffer.as_mut_ptr().cast(), 10));
    ensure!(count == 1 && buffer[..2] == [b'f', 9], buffer);
    refused! { readlink(at("f").as_ptr(), buffer.as_mut_ptr().cast(), 10) => EINVAL; }
    equal!(fs::symlink_metadata(format!("{folder}/l"))?.len(), 1);
    call!(symlink(c"loop2".as_ptr(), at("loop1").as_ptr()));
    call!(symlink(c"loop1".as_ptr(), at("loop2").as_ptr()));
    refused!(ELOOP, open(at("loop1").as_ptr(), O_RDONLY));
    call!(symlink(c"nowhere".as_ptr(), at("dangling").as_ptr()));
    refused!(ENOENT, open(at("dangling").as_ptr(), O_RDONLY));
    call!(open(at("dangling").as_ptr(), O_CREAT | O_WRONLY, 0o600));
    ensure!(fs::exists(format!("{folder}/nowhere"))?);
    refused!(EEXIST, symlink(c"x".as_ptr(), at("l").as_ptr()));
    refused!(ENOENT, symlink(c"".as_ptr(), at("m").as_ptr()));
    call!(mkdir(at("d").as_ptr(), 0o700));
    call!(symlink(c"d".as_ptr(), at("ld").as_ptr()));
    fs::write(format!("{folder}/ld/inside"), "x")?;
    ensure!(fs::exists(format!("{folder}/d/inside"))?);
    refused!(ENOTDIR, rmdir(at("ld").as_ptr()));
    call!(unlink(at("ld").as_ptr()));
    ensure!(fs::exists(format!("{folder}/d"))?);
    Ok(())
}

fn rename() -> Outcome {
    let folder = folder("rename")?;
    let at = |name: &str| c(&format!("{folder}/{name}"));
    let write = |name: &str| Ok::<_, Failure>(fs::write(format!("{folder}/{name}"), name)?);
    write("a")?;
    write("b")?;
    call!(rename(at("a").as_ptr(), at("b").as_ptr()));
    equal!(fs::read(format!("{folder}/b"))?, b"a");
    refused!(ENOENT, rename(at("a").as_ptr(), at("c").as_ptr()));
    for name in ["d", "e", "d/sub"] {
        call!(mkdir(at(name).as_ptr(), 0o700));
    }
    refused!(EINVAL, rename(at("d").as_ptr(), at("d/sub/x").as_ptr()));
    refused!(EISDIR, rename(at("b").as_ptr(), at("e").as_ptr()));
    refused!(ENOTDIR, rename(at("e").as_ptr(), at("b").as_ptr()));
    refused!(ENOTEMPTY, rename(at("e").as_ptr(), at("d").as_ptr()));
    call!(rename(at("d").as_ptr(), at("e").as_ptr()));
    ensure!(fs::exists(format!("{folder}/e/sub"))?);
    call!(rename(at("e/sub").as_ptr(), at("moved").as_ptr()));
    equal!(fs::metadata(format!("{folder}/e"))?.nlink(), 2);
    let up = fs::metadata(format!("{folder}/moved/.."))?;
    equal!(up.ino(), fs::metadata(&folder)?.ino());
    // Two names of one file: nothing happens.
    call!(link(at("b").as_ptr(), at("b2").as_ptr()));
    call!(rename(at("b").as_ptr(), at("b2").as_ptr()));
    ensure!(fs::exists(format!("{folder}/b"))?, "a name went away");
    let flags = RENAME_NOREPLACE;
    write("n")?;
    refused! {
        renameat2(AT_FDCWD, at("n").as_ptr(), AT_FDCWD, at("b").as_ptr(), flags) => EEXIST;
        rename(at("n").as_ptr(), c"/proc/n".as_ptr()) => EXDEV;
    }
    Ok(())
}

fn folders() -> Outcome {
    let folder = folder("folders")?;
    let at = |name: &str| c(&format!("{folder}/{name}"));
    call!(mkdir(at("d").as_ptr(), 0o755));
    refused!(EEXIST, mkdir(at("d").as_ptr(), 0o755));
    refused!(ENOENT, mkdir(at("x/y").as_ptr(), 0o755));
    call!(mkdir(at("d/e").as_ptr(), 0o755));
    equal!(fs::metadata(format!("{folder}/d"))?.nlink(), 3);
    refused!(ENOTEMPTY, rmdir(at("d").as_ptr()));
    refused!(EISDIR, unlink(at("d").as_ptr()));
    fs::write(format!("{folder}/f"), "")?;
    refused!(ENOTDIR, rmdir(at("f").as_ptr()));
    refused!(EINVAL, rmdir(at("d/e/.").as_ptr()));
    call!(chdir(at("d/e").as_ptr()));
    let here = std::env::current_dir()?;
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
    let (path, open) = file("unlinked", b"still here")?;
    fs::remove_file(&path)?;
    let mut bytes = [0u8; 10];
    call!(read(open, bytes.as_mut_ptr().cast(), 10));
    ensure!(&bytes == b"still here", "{bytes:?}");
    // SAFETY: all zeros is a valid stat to be overwritten.
    let mut stat: stat = unsafe { zeroed() };
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
        fs::write(format!("{folder}/{name}"), "")?;
    }
    let list = || -> Result<Vec<String>> {
        fs::read_dir(&folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    let found = list()?;
    ensure!(found.len() == 1000, "{} names listed", found.len());
    equal!(found.into_iter().collect::<BTreeSet<_>>(), names);
    // Names not removed while the folder is read are listed exactly once.
    let mut seen = BTreeSet::new();
    for (number, entry) in fs::read_dir(&folder)?.enumerate() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        ensure!(seen.insert(name.clone()), "{name} was listed twice");
        if number % 2 == 0 {
            fs::remove_file(format!("{folder}/{name}"))?;
        }
    }
    ensure!(seen == names, "{} of 1000 names while removing", seen.len());
    Ok(fs::remove_dir_all(&folder)?)
}

fn dots() -> Outcome {
    let folder = folder("dots")?;
    fs::create_dir_all(format!("{folder}/a/b"))?;
    fs::write(format!("{folder}/a/f"), "x")?;
    for path in [
        "a/./f",
        "a/b/../f",
        "a//f",
        "./a/b/.././../a/f",
        "../../../../../..//FOLDER/a/f",
    ] {
        call!(chdir(c(&folder).as_ptr()));
        let path = path.replace("/FOLDER", &folder);
        call!(access(c(&path).as_ptr(), F_OK));
    }
    refused! {
        access(c(&format!("{folder}/a/f/")).as_ptr(), F_OK) => ENOTDIR;
        access(c(&format!("{folder}/a/f/.")).as_ptr(), F_OK) => ENOTDIR;
        access(c"".as_ptr(), F_OK) => ENOENT;
    }
    let root = fs::metadata("/..")?;
    equal!(root.ino(), fs::metadata("/")?.ino());
    Ok(())
}

fn too_long() -> Outcome {
    let folder = folder("long")?;
    let name = "n".repeat(255);
    fs::write(format!("{folder}/{name}"), "")?;
    refused! {
        mkdir(c(&format!("{folder}/{name}n")).as_ptr(), 0o700) => ENAMETOOLONG;
        mkdir(c(&"/x".repeat(2100)).as_ptr(), 0o700) => ENAMETOOLONG;
    }
    let deep = format!("{folder}/{}", "d/".repeat(300));
    fs::create_dir_all(&deep)?;
    call!(access(c(&deep).as_ptr(), F_OK));
    Ok(fs::remove_dir_all(format!("{folder}/d"))?)
}

fn race() -> Outcome {
    let folder = folder("race")?;
    for name in ["a", "b", "a/x", "b/y"] {
        fs::create_dir(format!("{folder}/{name}"))?;
    }
    let children: Vec<_> = [("a/x", "b/x"), ("b/y", "a/y"), ("a", "c"), ("b", "d")]
        .into_iter()
        .map(|(from, to)| {
            spawn(|| {
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
        wait(child)?;
    }
    let mut folders = 0;
    let mut todo = vec![folder.clone()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(next)? {
            folders += 1;
            todo.push(entry?.path().to_string_lossy().into_owned());
        }
    }
    ensure!(folders == 4, "{folders} folders are left of 4");
    Ok(fs::remove_dir_all(&folder)?)
}
