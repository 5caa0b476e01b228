//! What sockets keep is charged to the processes that made them.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use fbuf::BytesSource;
use net::{
    Family, Stack,
    datagram::{self, Protocol, SendOptions},
    tcp,
};
use nucleus::sim::on_machines;
use vm::account::{self, Account, Kind};

static CURRENT: Mutex<Option<Arc<Account>>> = Mutex::new(None);

fn charge_to(account: Option<&Arc<Account>>) {
    *CURRENT.lock().unwrap() = account.cloned();
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

/// Connections not yet accepted, and reports not yet read, are charged until their sockets are
/// closed.
#[test]
fn what_waits_is_charged() {
    account::set_current(|| CURRENT.lock().unwrap().clone());
    on_machines(1, |_| {
        let user = Account::of_user(7);
        let account = Account::of_process(70, &user);
        let stack = Stack::new();
        charge_to(Some(&account));
        let listener = stack.tcp_socket(Family::V4, tcp::Options::default());
        charge_to(None);
        listener.bind(at(80)).unwrap();
        listener.listen(200).unwrap();
        for _ in 0..200 {
            let client = stack.tcp_socket(Family::V4, tcp::Options::default());
            client.connect(at(80)).unwrap();
            client.close(false);
        }
        let bytes = account.bytes(Kind::Sockets);
        assert!(bytes >= 200 * 1024, "{bytes} bytes for 200 connections");
        listener.close(false);
        drop(listener);
        assert_eq!(account.bytes(Kind::Sockets), 0);
        charge_to(Some(&account));
        let options = datagram::Options {
            receive_errors: true,
            ..datagram::Options::default()
        };
        let socket = stack.datagram_socket(Family::V4, Protocol::Udp, options);
        charge_to(None);
        let how = SendOptions {
            to: Some(at(9)),
            from: None,
            service: 0,
            hops: 64,
            interface: 0,
        };
        for _ in 0..3 {
            let _ = socket.send(&mut BytesSource::new(&[1; 60_000]), how);
            socket.take_error();
        }
        assert!(account.bytes(Kind::Sockets) >= 180_000);
        socket.close();
        drop(socket);
        drop(stack);
        assert_eq!(account.bytes(Kind::Sockets), 0);
    });
}
