//! Exit codes, and how an error is shown.

use std::io;
use std::process::ExitCode;

use model::ModelError;
use model::files::FileError;
use serve::server::ServerError;
use train::TrainError;

/// The code of a command that was interrupted and saved its work.
pub const INTERRUPTED: u8 = 130;

const FAILED: u8 = 1;
const INPUT_IS_WRONG: u8 = 2;

/// Prints an error with its context and turns the result of a command into the process's exit code.
pub fn code_of(result: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    if is_closed_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", message_of(&error));
    ExitCode::from(if is_input(&error) { INPUT_IS_WRONG } else { FAILED })
}

/// The message with its causes, but for those that it tells already.
fn message_of(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |message, cause| {
        let cause = cause.to_string();
        if message.contains(&cause) { message } else { format!("{message}: {cause}") }
    })
}

/// `trainyard predict … | head` ends early without a complaint.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kind = error.root_cause().downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe)
}

fn is_input(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref::<TrainError>() {
        Some(error) => error.is_input(),
        None => match cause.downcast_ref::<ModelError>() {
            Some(ModelError::File(error)) => error.is_input(),
            Some(_) => true,
            None => {
                cause.downcast_ref::<FileError>().is_some_and(FileError::is_input)
                    || cause.downcast_ref::<ServerError>().is_some_and(ServerError::is_input)
                    || cause.is::<Refused>()
                    || is_profile_input(cause)
            }
        },
    })
}

/// Whether this is an error of reading, importing or exporting a profile that another path or another file would not have.
fn is_profile_input(cause: &(dyn std::error::Error + 'static)) -> bool {
    use profile::{export, import, timeline};
    let io = |error: &io::Error| {
        use io::ErrorKind::{AlreadyExists, IsADirectory, NotADirectory, NotFound, PermissionDenied};
        matches!(error.kind(), AlreadyExists | IsADirectory | NotADirectory | NotFound | PermissionDenied)
    };
    let stored = |error: &trace::Error| if let trace::Error::Io { source, .. } = error { io(source) } else { true };
    if let Some(error) = cause.downcast_ref::<trace::Error>() {
        return stored(error);
    }
    if let Some(error) = cause.downcast_ref::<import::Error>() {
        return match error {
            import::Error::Io { source, .. } => io(source),
            import::Error::Profile(error) => stored(error),
            _ => true,
        };
    }
    if let Some(error) = cause.downcast_ref::<export::Error>() {
        return match error {
            export::Error::Io { source, .. } => io(source),
            export::Error::Profile(error) => stored(error),
            _ => true,
        };
    }
    match cause.downcast_ref::<timeline::Error>() {
        Some(timeline::Error::Profile(error)) => stored(error),
        other => other.is_some(),
    }
}

/// An argument that a command refuses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let cause = || Refused("no such file".into());
        assert_eq!(message_of(&anyhow::Error::from(cause()).context("cannot read a")), "cannot read a: no such file");
        let told = Err::<(), _>(cause()).context("cannot read a: no such file").unwrap_err();
        assert_eq!(message_of(&told), "cannot read a: no such file");
    }
}
