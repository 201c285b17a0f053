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
// A transport that needs to know more of the other end (queue pairs, addresses) sends parameters along, as many bytes
// as the Hello says, and both ends' parameters are inside MACs:
//
//   Proof {MAC(secret, "client", Hello, nonce_b, parameters)}, parameters   ->
//       <-   Verdict {accepted}, parameters, MAC(secret, "parameters", Hello, nonce_b, both parameters)
//   Ready {ok}, or a refusal                    ->
//
// After Ready the connecting end can receive, so the accepting end begins to send only then.
//
// The roles inside the MACs keep an end's own answer from being reflected to it; the nonces keep old ones from being
// replayed. The first eight bytes of every message (Head) never change, so that ends of different versions can still
// tell each other so.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/socket.h"

namespace tensorlane::handshake {

inline constexpr std::uint32_t kHandshakeMagic = 0x48534c54;  // "TLSH"
inline constexpr std::uint16_t kHandshakeVersion = 1;
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMacBytes = 32;
inline constexpr std::size_t kMaxParameterBytes = 512;

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
  kParameters = 10,  // the ends' transports do not fit each other
  kNotYet = 11,      // the flow is there but cannot go on yet: worth another try
};

// Whether the connecting end should try again until its deadline.
constexpr bool worth_retrying(Refusal refusal) {
  return refusal == Refusal::kJob || refusal == Refusal::kEpochNewer || refusal == Refusal::kNotAnswered ||
         refusal == Refusal::kNotYet;
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
  std::uint8_t rail = 0;
  std::uint16_t parameter_bytes = 0;  // of either end
  std::uint32_t reserved_too = 0;
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

struct Ready {
  Head head;
};
static_assert(sizeof(Ready) == 8);

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
  RailIndex rail() const { return credentials_.rail; }
  std::span<const std::byte> secret() const { return credentials_.secret; }
  Duration resume_within() const { return credentials_.resume_within; }

 private:
  ports::JobCredentials credentials_;
};
using JobPtr = std::shared_ptr<const Job>;
using JobTable = std::map<JobId, JobPtr>;

// What a transport adds to the handshake of one flow. Made by either end once the other one has proved itself.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // This end's parameters, ExchangeFactory::bytes_for() of them; makes what they describe. The accepting end is shown
  // those of the peer, for the connecting end `peer` is empty. An error is told to the peer; after kInProgress it asks
  // again.
  virtual Result<std::vector<std::byte>> offer(std::span<const std::byte> peer) = 0;
  // A secret that the two ends of this handshake alone have, and no other handshake; comes before accept().
  virtual void bind(const Mac& /*secret*/) {}
  // The peer's parameters; comes after offer(). An error is told to the peer.
  virtual Status accept(std::span<const std::byte> peer) = 0;
  // Whether what accept() has begun is done. The connecting end is ready only then; it asks again when whoever made the
  // exchange calls Connector::settle(). The accepting end asks when the peer is ready: then it has to be done. After an
  // error of kUnavailable the connecting end tries again; any other is told to the peer.
  virtual Result<bool> settled() { return true; }
  // Of the connecting end, after offer(): a descriptor that travels with the parameters; negative: none. Stays the
  // exchange's. Unix sockets only.
  virtual int descriptor() const { return -1; }
  // Of the accepting end, before offer(): the descriptor that came; invalid when none did.
  virtual void take_descriptor([[maybe_unused]] Fd descriptor) {}
};
struct ExchangeFactory {
  std::uint16_t bytes = 0;  // 0: nothing is exchanged
  std::function<std::unique_ptr<Exchange>(const ports::FlowKey&, const JobPtr&)> make;
  std::uint16_t resuming_bytes = 0;  // more, for flows of jobs that resume them

  // At most kMaxParameterBytes.
  std::uint16_t bytes_for(const Job& job) const {
    return static_cast<std::uint16_t>(bytes + (job.resume_within().value > 0 ? resuming_bytes : 0));
  }
};

// A reason with its text for people; ok when refusal is kNone.
struct Verdicted {
  Refusal refusal = Refusal::kNone;
  std::string text;
  bool ok() const { return refusal == Refusal::kNone; }
};

// Fills a nonce from the system's generator. Who makes a transport has called sodium_init().
Nonce random_nonce();
Hello make_hello(const Job& job, HostIndex to, ClassId cls, std::uint16_t parameter_bytes = 0);

// Magic and version of any message that arrived.
Verdicted check_head(const Head& head);
// Whether a flow like this may be accepted on the listener of `cls`: head, parameters, class, job, epoch, hosts and
// rail, in that order.
Verdicted check_hello(const Hello& hello, ClassId cls, std::uint16_t parameter_bytes, const JobTable& jobs);

// HMAC-SHA256 over role, the whole hello, the server's nonce and parameters (whose length the hello fixes).
using Parameters = std::span<const std::byte>;
Mac server_mac(const Job& job, const Hello& hello, const Nonce& server_nonce);
Mac client_mac(const Job& job, const Hello& hello, const Nonce& server_nonce, Parameters client = {});
Mac parameter_mac(const Job& job, const Hello& hello, const Nonce& server_nonce, Parameters client, Parameters server);
// What Exchange::bind() is given. It never crosses the wire.
Mac exchange_secret(const Job& job, const Hello& hello, const Nonce& server_nonce, Parameters client,
                    Parameters server);
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

}  // namespace tensorlane::handshake
