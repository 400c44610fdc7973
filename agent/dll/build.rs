//! Builds agent.dll for Windows in a separate cargo call and puts it where cargo puts the programs.
//!
//! `STK_AGENT_APART=1` leaves it out, for scripts that build or check the agent themselves.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=STK_AGENT_APART");
    for input in [
        "src",
        "build.rs",
        "Cargo.toml",
        "../build",
        "../schema",
        "../format",
        "../Cargo.toml",
        "../Cargo.lock",
    ] {
        println!("cargo::rerun-if-changed=../{input}");
    }
    if env::var("CARGO_CFG_TARGET_OS")? != "windows" || env::var_os("STK_AGENT_APART").is_some() {
        return Ok(());
    }
    let target = env::var("TARGET")?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let own_target_dir = out.join("agent");
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo
        .args(["build", "--profile", "agent", "--package", "stk-agent", "--target", &target])
        .arg("--target-dir")
        .arg(&own_target_dir);
    // A lint driver would link nothing.
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("agent.dll could not be built ({status}): see the messages above").into());
    }
    let built = own_target_dir.join(&target).join("agent");
    // OUT_DIR is <target folder>/<profile>/build/<package>/out.
    let beside = out.ancestors().nth(3).ok_or("OUT_DIR is not inside a target folder")?;
    copy(&built, beside, "agent.dll")?;
    // Only some linkers make one.
    if built.join("agent.pdb").exists() {
        copy(&built, beside, "agent.pdb")?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, name: &str) -> Result<(), Box<dyn Error>> {
    fs::copy(from.join(name), to.join(name)).map_err(|error| {
        format!("{} cannot be copied to {}: {error}", from.join(name).display(), to.display())
    })?;
    Ok(())
}
