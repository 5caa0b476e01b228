//! The bench's page in headless Chromium: no error, nothing too wide on a phone, pictures that are
//! not empty, and print.
//!
//! The page is that of the results that the report's own tests use. How it lies on a screen is
//! asked by `probe.html`, which shows it in a frame of some width and writes its findings into its
//! title.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;

use super::Report;
use super::boot::text;
use crate::bench::report;
use crate::bench::results::Results;
use crate::project;

/// The names of the program on different systems.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Widths of a phone and of a desktop's window, in a page's pixels.
const WIDTHS: [u32; 2] = [375, 1280];

/// A screenshot has one of its pixels for so many of the page's, each way.
const SHRINK: f64 = 2.0;

/// Seconds for one call of the browser on a busy host.
const PATIENCE: &str = "180";

/// Runs them, where there is a browser. On Debian there must be.
pub fn run(report: &mut Report) {
    if !report.wants("report") {
        return;
    }
    let Some(browser) = found() else {
        let why = "no Chromium is on the PATH; scripts/setup.sh test installs Debian's";
        if is_debian() {
            report.note("report: a browser to open it", Err(anyhow!(why)));
        } else {
            println!("skipped report: {why}");
        }
        return;
    };
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => return report.note("report: a folder", Err(error.into())),
    };
    let folder = folder.path();
    let page = match page(folder) {
        Ok(page) => page,
        Err(error) => return report.note("report: its page", Err(error)),
    };
    let browser = Browser {
        program: browser,
        profile: folder.join("profile"),
    };
    report.run("report: opens without an error", || opens(&browser, &page));
    for width in WIDTHS {
        report.run(&format!("report: fits {width} pixels"), || {
            fits(&browser, &page, width)
        });
    }
    report.run("report: pictures are not empty", || drawn(&browser, &page));
    report.run("report: prints", || prints(&browser, &page));
}

/// The first of the browsers that is on the PATH.
fn found() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    BROWSERS
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|file| file.is_file())
}

fn is_debian() -> bool {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    release.lines().any(|line| line == "ID=debian")
}

/// Makes the page in a folder.
fn page(folder: &Path) -> Result<PathBuf> {
    let example = project::home()?.join("tools/causeway/src/bench/report/example.json");
    let page = folder.join("report.html");
    report::write(&Results::read(&example)?, &page)?;
    Ok(page)
}

struct Browser {
    program: PathBuf,
    /// Its own files, away from the user's.
    profile: PathBuf,
}

impl Browser {
    /// Opens a page with the options `words`; returns the standard output and the standard error.
    fn open(&self, words: &[&str], page: &Path) -> Result<(String, String)> {
        let output = Command::new("timeout")
            .args(["--kill-after=5", PATIENCE])
            .arg(&self.program)
            // The pages are our own, and root has no sandbox.
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .args([
                "--no-first-run",
                "--disable-dev-shm-usage",
                "--enable-logging=stderr",
            ])
            .arg(format!("--user-data-dir={}", self.profile.display()))
            .args(words)
            .arg(format!("file://{}", page.display()))
            .output()
            .with_context(|| self.program.display().to_string())?;
        let errors = text(&output.stderr);
        ensure!(output.status.success(), "{}: {errors}", output.status);
        Ok((text(&output.stdout), errors))
    }
}

/// Any message of the browser's console about the page is an error.
fn opens(browser: &Browser, page: &Path) -> Result<()> {
    let (document, errors) = browser.open(&["--dump-dom"], page)?;
    if let Some(line) = errors.lines().find(|line| line.contains("CONSOLE")) {
        bail!("{line}");
    }
    ensure!(
        document.contains("id=\"setting\"") && document.contains("</html>"),
        "the document, {} bytes, is not whole",
        document.len()
    );
    Ok(())
}

/// The findings of `probe.html`.
#[derive(Deserialize, Debug)]
struct Probe {
    width: f64,
    scroll_width: f64,
    height: f64,
    /// Elements that reach beyond the page's right edge.
    wide: Vec<String>,
    sections: usize,
    rows: usize,
    pictures: Vec<Picture>,
}

#[derive(Deserialize, Debug)]
struct Picture {
    name: String,
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    /// Marks that have a size on the screen.
    marks: usize,
    /// Texts that reach beyond the picture.
    outside: Vec<String>,
}

fn probe(browser: &Browser, page: &Path, width: u32) -> Result<Probe> {
    let text = fs::read_to_string(page)?;
    let escaped = text.replace('&', "&amp;").replace('"', "&quot;");
    let probe = include_str!("probe.html")
        .replace("WIDTH", &width.to_string())
        .replace("PAGE", &escaped);
    let file = page.with_file_name(format!("probe-{width}.html"));
    fs::write(&file, probe)?;
    let (document, errors) = browser.open(&["--dump-dom"], &file)?;
    let found = document
        .split_once("<title>")
        .and_then(|(_, rest)| rest.split_once("</title>"))
        .map(|(title, _)| {
            title
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&amp;", "&")
        });
    let found = found.with_context(|| format!("the probe says nothing: {errors}"))?;
    serde_json::from_str(&found).with_context(|| format!("{found} {errors}"))
}

/// Only elements that scroll in a box of their own reach beyond the screen, and none out of a
/// picture.
fn fits(browser: &Browser, page: &Path, width: u32) -> Result<()> {
    let probe = probe(browser, page, width)?;
    let fits = probe.width == f64::from(width) && probe.scroll_width <= probe.width;
    ensure!(
        fits && probe.wide.is_empty(),
        "{} pixels of page in {}: {:?}",
        probe.scroll_width,
        probe.width,
        probe.wide
    );
    let (sections, rows, pictures) = (probe.sections, probe.rows, &probe.pictures);
    ensure!(
        sections >= 6 && rows >= 100 && pictures.len() >= 40,
        "{sections} sections, {rows} rows, {} pictures",
        pictures.len()
    );
    let bad = |it: &&Picture| it.marks == 0 || it.width < 300.0 || !it.outside.is_empty();
    match pictures.iter().find(bad) {
        Some(picture) => bail!("{}: {picture:?}", picture.name),
        None => Ok(()),
    }
}

/// A style that shows the page's pictures only, side by side: a screenshot of the whole page would
/// be taller than a browser draws.
const SHEET: &str = "<style>
    h1, h2, h3, h4, p, ul, dl, pre, nav, .scroll, .blank { display: none }
    header, main, section, article, div { display: contents }
    body { display: flex; flex-wrap: wrap; gap: 1rem; max-width: none; margin: 0; padding: 1rem }
</style></head>";

/// The sheet's width.
const SHEET_WIDTH: u32 = 2400;

/// Each picture has its colours on a screenshot.
fn drawn(browser: &Browser, page: &Path) -> Result<()> {
    let text = fs::read_to_string(page)?;
    let sheet = page.with_file_name("sheet.html");
    fs::write(&sheet, text.replacen("</head>", SHEET, 1))?;
    let probe = probe(browser, &sheet, SHEET_WIDTH)?;
    let file = page.with_extension("png");
    let (window, shot, scale) = (
        format!("--window-size={SHEET_WIDTH},{}", probe.height),
        format!("--screenshot={}", file.display()),
        format!("--force-device-scale-factor={}", 1.0 / SHRINK),
    );
    let (_, errors) = browser.open(&[&window, &shot, &scale], &sheet)?;
    let screen = Screen::read(&file).with_context(|| errors)?;
    let pale = probe
        .pictures
        .iter()
        .find(|it| screen.colours(it) < COLOURED);
    match pale {
        Some(picture) => bail!(
            "{}: {} coloured pixels at {}, {} of {} x {}",
            picture.name,
            screen.colours(picture),
            picture.left,
            picture.top,
            screen.width,
            screen.height
        ),
        None => Ok(()),
    }
}

/// Coloured pixels that one mark has at least on a shrunk screen.
const COLOURED: usize = 6;

/// A screenshot's pixels.
struct Screen {
    width: usize,
    height: usize,
    /// Red, green, blue, and further samples of each pixel.
    bytes: Vec<u8>,
    samples: usize,
}

impl Screen {
    fn read(file: &Path) -> Result<Screen> {
        let read = fs::File::open(file)?;
        let decoder = png::Decoder::new(std::io::BufReader::new(read));
        let mut reader = decoder.read_info()?;
        let size = reader.output_buffer_size().context("a picture too large")?;
        let mut bytes = vec![0; size];
        let info = reader.next_frame(&mut bytes)?;
        if info.bit_depth != png::BitDepth::Eight || info.color_type.samples() < 3 {
            bail!("{info:?}");
        }
        Ok(Screen {
            width: info.width as usize,
            height: info.height as usize,
            bytes,
            samples: info.color_type.samples(),
        })
    }

    /// How many pixels of a picture are neither grey nor nearly so: texts and axes are.
    fn colours(&self, picture: &Picture) -> usize {
        let place = |value: f64, end: usize| ((value / SHRINK).max(0.0) as usize).min(end);
        let (left, right) = (
            place(picture.left, self.width),
            place(picture.left + picture.width, self.width),
        );
        let (top, bottom) = (
            place(picture.top, self.height),
            place(picture.top + picture.height, self.height),
        );
        let coloured = |at: usize| {
            let pixel = &self.bytes[at..at + 3];
            let (least, most) = (pixel.iter().min(), pixel.iter().max());
            most.zip(least)
                .is_some_and(|(most, least)| most - least > 40)
        };
        (top..bottom)
            .flat_map(|y| (left..right).map(move |x| (y * self.width + x) * self.samples))
            .filter(|at| coloured(*at))
            .count()
    }
}

/// A file of some pages of A4 comes out.
fn prints(browser: &Browser, page: &Path) -> Result<()> {
    let file = page.with_extension("pdf");
    let print = format!("--print-to-pdf={}", file.display());
    let (_, errors) = browser.open(&[&print, "--no-pdf-header-footer"], page)?;
    let bytes = fs::read(&file).with_context(|| errors)?;
    let text = String::from_utf8_lossy(&bytes);
    let pages = text.matches("<</Type /Page\n").count();
    ensure!(
        text.starts_with("%PDF-") && (8..60).contains(&pages),
        "{} bytes, {pages} pages",
        bytes.len()
    );
    Ok(())
}
