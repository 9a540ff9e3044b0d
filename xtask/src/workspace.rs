//! Where the workspace is, and the cargo that runs in it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::Context;

/// Returns the folder of the workspace's manifest.
pub(crate) fn root() -> anyhow::Result<PathBuf> {
    let manifest_dir = env::var_os("CARGO_MANIFEST_DIR")
        .context("only cargo can say where the workspace is: run this as `cargo xtask`")?;
    let root = Path::new(&manifest_dir).parent();
    Ok(root.context("xtask lies in no workspace")?.to_owned())
}

/// Prepares a call, in the workspace, of the cargo that runs this program.
pub(crate) fn cargo(arguments: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(program());
    command.current_dir(root()?).args(arguments);
    Ok(command)
}

/// Returns the cargo that runs this program.
pub(crate) fn program() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"))
}

/// Returns the exit of another program as the exit of this one.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(1))
}
