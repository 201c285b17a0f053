// The handshake in front of every data connection (law 14): both ends prove that they hold the job's secret, for this
// job, epoch, pair of hosts and class, over a nonce of each end. Pure: no socket, no clock.
//
//   connecting end                                   accepting end
//   Hello {who I am, which flow, nonce_a}       ->
//                                               <-   Challenge {nonce_b, MAC(secret, "server", Hello, nonce_b)}, or a
//                                               refusal with its reason
//   Proof {MAC(secret, "client", Hello, nonce_b)} -> (or a refusal: the server's MAC was wrong)
//                                               <-   Verdict {accepted}, or a refusal
//
// The roles inside the MACs keep an end's own answer from being reflected to it; the nonces keep old ones from being
// replayed. The first eight bytes of every message (Head) never change, so that ends of different versions can still
// tell each other so.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/transport.h"

namespace tensorlane::tcp {

inline constexpr std::uint32_t kHandshakeMagic = 0x48534c54;  // "TLSH"
inline constexpr std::uint16_t kHandshakeVersion = 1;
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMacBytes = 32;

// Why an end refuses. Numbers are stable: they are on the wire.
enum class Refusal : std::uint8_t {
  kNone = 0,
  kNotTensorlane = 1,  // wrong magic
  kVersion = 2,
  kClass = 3,       // the flow's class is not this listener's
  kJob = 4,         // not known here, or not yet: worth another try
  kEpochNewer = 5,  // the connecting end's epoch is newer than ours: worth another try
  kEpochOlder = 6,  // the connecting end's epoch is older than ours
  kHost = 7,        // we are not the host it meant, or it must not be the one to connect
  kSecret = 8,
  kNotAnswered = 9,  // the next message did not come in time
};

// Whether the connecting end should try again until its deadline.
constexpr bool worth_retrying(Refusal refusal) {
  return refusal == Refusal::kJob || refusal == Refusal::kEpochNewer || refusal == Refusal::kNotAnswered;
}

using Nonce = std::array<std::uint8_t, kNonceBytes>;
using Mac = std::array<std::uint8_t, kMacBytes>;
using Text = std::array<char, 152>;

struct Head {
  std::uint32_t magic = kHandshakeMagic;
  std::uint16_t version = kHandshakeVersion;
  Refusal refusal = Refusal::kNone;
  std::uint8_t reserved = 0;
};
static_assert(sizeof(Head) == 8);

struct Hello {
  Head head;
  std::uint64_t job = 0;
  std::uint32_t epoch = 0;
  std::uint16_t from = 0, to = 0;
  std::uint8_t cls = 0;
  std::array<std::uint8_t, 7> reserved{};
  Nonce nonce{};
};
static_assert(sizeof(Hello) == 64);

// The server's first answer. A refusal uses `text` in place of nonce and MAC.
struct Challenge {
  Head head;
  Nonce nonce{};
  Mac mac{};
  Text text{};
};
static_assert(sizeof(Challenge) == 224);

struct Proof {
  Head head;
  Mac mac{};
};
static_assert(sizeof(Proof) == 40);

struct Verdict {
  Head head;
  Text text{};
};
static_assert(sizeof(Verdict) == 160);

// A job's credentials; the secret is wiped from memory with the last holder.
class Job {
 public:
  explicit Job(ports::JobCredentials credentials) : credentials_(std::move(credentials)) {}
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  JobId id() const { return credentials_.job; }
  Epoch epoch() const { return credentials_.epoch; }
  HostIndex self() const { return credentials_.self; }
  std::span<const std::byte> secret() const { return credentials_.secret; }

 private:
  ports::JobCredentials credentials_;
};
using JobPtr = std::shared_ptr<const Job>;
using JobTable = std::map<JobId, JobPtr>;

// A reason with its text for people; ok when refusal is kNone.
struct Verdicted {
  Refusal refusal = Refusal::kNone;
  std::string text;
  bool ok() const { return refusal == Refusal::kNone; }
};

// Fills a nonce from the system's generator. make_tcp_transport() has called sodium_init().
Nonce random_nonce();
Hello make_hello(const Job& job, HostIndex to, ClassId cls);

// Magic and version of any message that arrived.
Verdicted check_head(const Head& head);
// Whether a flow like this may be accepted on the listener of `cls`: head, class, job, epoch and hosts, in that order.
Verdicted check_hello(const Hello& hello, ClassId cls, const JobTable& jobs);

// HMAC-SHA256 over role, the whole hello and the server's nonce.
Mac server_mac(const Job& job, const Hello& hello, const Nonce& server_nonce);
Mac client_mac(const Job& job, const Hello& hello, const Nonce& server_nonce);
// In constant time.
bool same_mac(const Mac& a, const Mac& b);

// Texts cross the wire as at most 151 bytes; what is not printable reads as '?'.
Text pack_text(const std::string& text);
std::string unpack_text(const Text& text);

// The Code that a refusal becomes in a Status, and what to do about it.
Code refusal_code(Refusal refusal);
std::string refusal_fix(Refusal refusal);

template <typename Message>
std::span<const std::byte> bytes_of(const Message& message) {
  static_assert(std::has_unique_object_representations_v<Message>, "padding would go over the wire");
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace tensorlane::tcp
