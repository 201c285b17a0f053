// The fabric of N hosts on this machine, and the folder that holds what its daemons need: fabric file and keys.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/fabric/fabric.h"

namespace tensorlane::cli {

// kLocal: hosts share this machine's loopback (127.0.0.10, .11, ...; their second rail 127.0.1.10, .11, ...). kLab: one
// network namespace each (10.77.0.1, .2, ...; their second rail 10.77.1.1, .2, ...).
enum class Place { kLocal, kLab };

struct LocalFabric {
  int hosts = 4;  // 1 to 200
  int rails = 1;  // of each host, 1 to 8
  Place place = Place::kLocal;
  fabric::ClassTable classes = fabric::preset(fabric::Preset::kGreenfield);
  BitsPerSecond speed{500'000'000};  // of every link; kLab only (loopback has no links)
  Bytes buffer = kib(512);           // of every port; kLab only
  std::uint32_t mtu = 1500;          // of every link; kLab only
  // Whether the hosts have an address for RDMA: none, their tcp address, or one of its own for a VLAN (10.78.0.1, .2,
  // ...); kLab only.
  enum class Rdma { kNone, kShared, kVlan } rdma = Rdma::kNone;
  std::uint16_t first_port = 7100;  // control; data listeners from first_port + 10
};

// Hosts h0, h1, ... on one switch for each rail: s0, s1, ...; without keys. kInvalidArgument when `hosts` or `rails` is
// out of range.
Result<fabric::Fabric> make_local_fabric(const LocalFabric& what);

// A CURVE key pair in Z85, 40 characters each.
struct KeyPair {
  std::string public_key;
  std::string secret_key;
};
// Without "{{", "{%" and "{#", so that a template of Jinja (Ansible) can hold them.
Result<KeyPair> make_key_pair();
// Writes the secret key as daemons read it: 40 characters and a line feed, for its owner only. Errors: kAlreadyExists
// (a key is never overwritten: its public half may be in use), kPermissionDenied, kInvalidArgument.
Status write_secret_key(const KeyPair& pair, const std::string& path);

// What to say when a file could not be written, by errno.
Status cannot_write(const std::string& path);

// Where runtime folders live: /run/tensorlane, or $TMPDIR/tensorlane-UID (/tmp without TMPDIR) where that cannot be
// made.
Result<std::string> runtime_root();

// A folder of its own for one set of daemons:
//   fabric.yaml          the fabric, with the public keys below
//   keys/HOST.secret     mode 0600: 40 characters of Z85 and a line feed
//   HOST.sock            the session socket, made by HOST's daemon
struct RuntimeDir {
  std::string path;
  fabric::Fabric fabric;

  std::string fabric_file() const { return path + "/fabric.yaml"; }
  std::string secret_key_file(const std::string& host) const { return path + "/keys/" + host + ".secret"; }
  std::string socket(const std::string& host) const { return path + "/" + host + ".sock"; }
};

// Makes runtime_root()/NAME, new keys for every host (keys that `fabric` has are replaced: nobody here knows their
// secrets) and the files. Errors: kAlreadyExists, kPermissionDenied, kInvalidArgument (the name; a path too long for a
// socket).
Result<RuntimeDir> make_runtime(const std::string& name, fabric::Fabric fabric);
// The one that make_runtime() made. kNotFound when there is none.
Result<RuntimeDir> open_runtime(const std::string& name);
// Removes the folder and what is in it; ok when there is none.
Status remove_runtime(const std::string& name);

// Names of labs, runs and folders: 1 to 24 letters, digits, '_' and '-', since they become part of interface and
// namespace names.
Status check_run_name(const std::string& name);

}  // namespace tensorlane::cli
