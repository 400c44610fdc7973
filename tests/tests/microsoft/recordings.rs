//! Recordings of real programs, made anew.

use std::path::{Path, PathBuf};

use stk_tests::wine::{self, Folder, Inject, Net, Program};

/// How long the programs that do not end by themselves are recorded.
fn seconds() -> &'static str {
    if wine::long() { "30s" } else { "3s" }
}

/// A recording, and the folders of the images that it shows, besides Wine's.
pub(crate) struct Recording {
    pub(crate) name: &'static str,
    pub(crate) trace: PathBuf,
    pub(crate) images: Vec<PathBuf>,
    _folder: Folder,
}

fn recording(name: &'static str, folder: Folder, images: &[PathBuf]) -> Recording {
    Recording { name, trace: folder.file("real.stk"), images: images.to_vec(), _folder: folder }
}

fn attached(folder: &Folder, target: &[&str]) {
    Inject::record(folder, &[target, &["-o", "real.stk", "-d", seconds()]].concat());
}

fn launched(folder: &Folder, exe: &Path, arguments: &[&str]) {
    let exe = wine::windows_path(exe);
    Inject::launch_in(folder, folder.path(), &[&["-o", "real.stk", "--", &exe], arguments].concat());
    assert!(folder.file("real.stk").exists(), "{exe} was not recorded");
}

pub(crate) fn busy() -> Recording {
    let folder = Folder::new("busy");
    let busy = Program::busy(&folder, 0);
    attached(&folder, &["--pid", &busy.pid()]);
    recording("busy", folder, &[wine::path("STK_BUSY_DIR")])
}

pub(crate) fn cmake() -> Recording {
    let folder = Folder::new("cmake");
    let home = wine::path("STK_FETCH_DIR").join("cmake/cmake/data/bin");
    let _cmake = Program::cmake(&folder, &home.join("cmake.exe"));
    attached(&folder, &["--name", "cmake.exe"]);
    recording("cmake", folder, &[home])
}

pub(crate) fn node() -> Recording {
    let folder = Folder::new("node");
    let home = wine::path("STK_FETCH_DIR").join("node/bin");
    let node = Program::node(&folder, 600);
    attached(&folder, &["--pid", &node.pid()]);
    recording("node", folder, &[home])
}

pub(crate) fn mixed() -> Recording {
    let folder = Folder::new("mixed");
    let mixed = Program::mixed(&folder, Net::V3, &["600"], &[]);
    attached(&folder, &["--pid", &mixed.pid()]);
    mixed.stop();
    let home = wine::path("STK_FETCH_DIR").join("dotnet31");
    recording(
        "mixed",
        folder,
        &[home.join("shared"), home.join("host"), wine::path("STK_MIXED_DIR").join("net31")],
    )
}

pub(crate) fn esbuild() -> Recording {
    let folder = Folder::new("esbuild");
    wine::write_modules(&folder);
    let home = wine::path("STK_FETCH_DIR").join("esbuild");
    let arguments = ["--bundle", "entry.js", "--minify", "--sourcemap", "--outfile=out/out.js"];
    launched(&folder, &home.join("esbuild.exe"), &arguments);
    recording("esbuild", folder, &[home])
}

pub(crate) fn biome() -> Recording {
    let folder = Folder::new("biome");
    wine::write_modules(&folder);
    let home = wine::path("STK_FETCH_DIR").join("biome");
    let files: Vec<String> = (0..20).map(|number| format!("m{number}.js")).collect();
    let arguments: Vec<&str> = ["lint"].into_iter().chain(files.iter().map(String::as_str)).collect();
    launched(&folder, &home.join("biome.exe"), &arguments);
    recording("biome", folder, &[home])
}
