from drfd.launcher.slurm.main import main

if __name__ == "__main__":
    main()
