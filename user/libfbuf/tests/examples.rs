//! The examples end well.

use std::env;
use std::path::PathBuf;
use std::process::Command;

#[test]
fn the_examples_run() {
    let this = env::current_exe().expect("a path");
    let folder: PathBuf = this.ancestors().nth(2).expect("a folder").join("examples");
    for name in ["echo", "fan_out", "pipeline"] {
        let status = Command::new(folder.join(name)).status().expect(name);
        assert!(status.success(), "{name}");
    }
}
