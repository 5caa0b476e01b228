//! `bench`: see the library's front page.

fn main() {
    std::process::exit(bench::main());
}
