//! The `stk` program: see the library's [`stk::commands`].

fn main() -> std::process::ExitCode {
    stk::commands::run()
}
