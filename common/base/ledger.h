// Who has how much of something that a daemon has only so much of: bytes, tensors, sessions. All of it belongs to a
// user, then to a job, and one user cannot take everything (law 19).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace tensorlane {

// Whom something is charged to.
struct Owner {
  std::uint32_t user = 0;  // uid
  std::string job;         // its name; a process set counts as its job. Empty: no job has it (yet)
};

class Ledger {
 public:
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
  struct Rules {
    std::string what;      // as an error begins: "shared memory"
    std::string key;       // what says `total`: a key of daemon.yaml, or in words
    std::string user_key;  // ... and `per_user`
    bool fixed = false;    // nobody can raise it: no error advises that
    std::string fix;       // what a user can do beside raising them: "register less"
    std::uint64_t total = kUnlimited;
    std::uint64_t per_user = kUnlimited;
    // By user: what nobody else may take, of `total`. Their sum is at most `total`, so each of them always gets as
    // much.
    std::map<std::uint32_t, std::uint64_t> kept = {};
    std::string kept_key = {};                            // of daemon.yaml, that says how much
    std::string (*amount_text)(std::uint64_t) = nullptr;  // "5 MiB"; none: the number
  };

  // What was taken, until it goes or is released. Movable; the ledger may go before it. Any thread.
  class Charge {
   public:
    Charge() = default;
    Charge(Charge&& other) noexcept;
    Charge& operator=(Charge&& other) noexcept;
    ~Charge() { release(); }
    void release();
    // Gives back `amount`, at most all of it.
    void release(std::uint64_t amount);
    // Takes over what another charge of the same ledger and owner has.
    void add(Charge&& other);
    std::uint64_t amount() const { return amount_; }

   private:
    friend class Ledger;
    struct Books;
    Charge(std::shared_ptr<Books> books, Owner owner, std::uint64_t amount)
        : books_(std::move(books)), owner_(std::move(owner)), amount_(amount) {}
    std::shared_ptr<Books> books_;
    Owner owner_;
    std::uint64_t amount_ = 0;
  };

  explicit Ledger(Rules rules);

  // Charges `amount` to the owner. Error: kResourceExhausted, which says what is needed, what is in use, which key of
  // daemon.yaml limits it, and for whom. Any thread; it locks, so it is not for the data path.
  [[nodiscard]] Result<Charge> take(const Owner& owner, std::uint64_t amount);
  // From now on these rules count; what is charged stays, even where it is more than they allow. Any thread.
  void change(Rules rules);
  // Whether take() would succeed now: the same errors, and nothing is charged.
  Status check(const Owner& owner, std::uint64_t amount) const;

  std::uint64_t in_use() const;
  std::uint64_t in_use_by(std::uint32_t user) const;
  struct Row {
    Owner owner;
    std::uint64_t amount = 0;
  };
  // Everything that is charged, by user and then by job, ascending. For reports.
  std::vector<Row> rows() const;

 private:
  const std::shared_ptr<Charge::Books> books_;
};

}  // namespace tensorlane
