//! The control plane: the socket, its protocol, and what the commands do.

mod add;
pub mod arrays;
mod assemble;
mod attach;
pub mod client;
pub mod commands;
mod create;
pub mod lines;
pub mod listen;
pub mod member_protocol;
mod members;
pub mod peer;
pub mod protocol;
pub mod server;
mod tune;
