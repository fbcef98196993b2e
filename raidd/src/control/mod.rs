//! The control plane: the socket, its protocol, and what the commands do.

pub mod arrays;
pub mod client;
pub mod lines;
pub mod listen;
pub mod peer;
pub mod protocol;
pub mod server;
