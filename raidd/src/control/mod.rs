//! The control plane: the socket, its protocol, and what the commands do.

pub mod arrays;
mod assemble;
pub mod client;
pub mod commands;
mod create;
pub mod lines;
pub mod listen;
pub mod peer;
pub mod protocol;
pub mod server;
