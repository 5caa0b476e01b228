//! Links the bootable kernel by the nucleus's linker script.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_OS").expect("cargo sets the target");
    if target == "none" {
        let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets the folder");
        println!("cargo:rerun-if-changed={root}/../nucleus/kernel.ld");
        println!("cargo:rustc-link-arg-bins=-T{root}/../nucleus/kernel.ld");
        println!("cargo:rustc-link-arg-bins=-zmax-page-size=4096");
        println!("cargo:rustc-link-arg-bins=--build-id=none");
        // For the table by which the kernel moves itself (tools/causeway/src/relocations.rs).
        println!("cargo:rustc-link-arg-bins=--emit-relocs");
    }
}
